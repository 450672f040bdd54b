// What ranks that divide nothing evenly export together.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lathe/io/safetensors.h"
#include "lathe/model/checkpoint.h"

#include "support/random_parameters.h"
#include "support/run_ranks.h"
#include "support/temp_folder.h"

#include "engine/tiny_model.h"

namespace lathe::test {
namespace {

constexpr int64_t kVocabulary = 151;  // 2, 4 and 8 leave rows over

// A model folder with odd sizes.
std::string make_model(const TempFolder& temp, bool tied) {
  nlohmann::json config;
  std::ifstream(std::string(LATHE_GOLDENS) + "/qwen3_5_moe/model/config.json") >> config;
  config["vocab_size"] = kVocabulary;
  config["tie_word_embeddings"] = tied;
  initialize_model(temp.write("config.json", config.dump()), temp / "model", 3, "bf16");
  return temp / "model";
}

// Weights that are not those of the folder, the same on every mesh.
void export_from(const std::string& model, const CommunicatorFactory& factory, const std::string& to) {
  const HfFolder folder(model);
  const ModelConfig config = read_model_config(model, nullptr);
  const ParameterLayout layout = layout_of_folder(config, folder, nullptr);
  Device device(cpu_f32(1));
  const auto communicator = factory(*device.memory);
  Log log(false);
  Engine engine(device, *communicator, config, layout, tiny_options(), log);
  engine.load(folder);
  engine.device_thread().run([&] { fill_parameters(engine.store(), 11); });
  engine.start_save([&] { engine.export_to(folder, to); });
  engine.finish_save();
}

void expect_shapes_of(const SafetensorsFile& imported, const SafetensorsFile& exported) {
  ASSERT_EQ(exported.names_in_file_order(), imported.names_in_file_order());
  int64_t tables = 0;
  for (const auto& [name, info] : imported.tensors()) {
    EXPECT_EQ(exported.tensors().at(name).shape, info.shape) << name;
    EXPECT_EQ(exported.tensors().at(name).dtype, info.dtype) << name;
    if (info.shape.front() == kVocabulary) ++tables;
  }
  EXPECT_GE(tables, 1);
}

TEST(ExportOverRanks, HasTheImportedShapesAndTheBytesOfOneRank) {
  for (const bool tied : {false, true}) {
    const TempFolder temp;
    const std::string model = make_model(temp, tied);
    const std::string alone = temp / "alone";
    std::filesystem::create_directories(alone);
    export_from(
        model, [](DeviceMemory& /*memory*/) { return make_solo_communicator(); }, alone);
    const std::string expected = bytes_of_file(alone + "/model.safetensors");
    EXPECT_NE(expected, bytes_of_file(model + "/model.safetensors"));
    for (const MeshShape& mesh :
         {MeshShape{1, 2, 4, 1}, MeshShape{1, 1, 4, 1}, MeshShape{1, 2, 1, 1}, MeshShape{2, 3, 1, 1}}) {
      SCOPED_TRACE(fmt::format("tied {}, fsdp {}, context {}", tied, mesh.fsdp, mesh.context));
      const std::string to = temp / fmt::format("ranks_{}_{}", mesh.fsdp, mesh.context);
      std::filesystem::create_directories(to);
      run_ranks_of(mesh, [&](ThreadWorld& world, int rank) {
        export_from(
            model, [&](DeviceMemory& memory) { return world.communicator(rank, memory); }, to);
      });
      expect_shapes_of(SafetensorsFile(model + "/model.safetensors"),
                       SafetensorsFile(to + "/model.safetensors"));
      EXPECT_TRUE(bytes_of_file(to + "/model.safetensors") == expected);
    }
  }
}

}  // namespace
}  // namespace lathe::test
