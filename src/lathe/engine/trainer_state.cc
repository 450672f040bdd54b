// What a checkpoint holds beside the model: moments, exact masters, counters.
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "lathe/engine/engine.h"
#include "lathe/io/files.h"
#include "lathe/io/safetensors.h"

namespace lathe {
namespace {

TensorToWrite f32_tensor(const std::string& name, const Shape& shape,
                         std::function<void(std::byte*)> produce) {
  TensorToWrite out{.name = name, .dtype = "F32", .shape = {}, .produce = std::move(produce)};
  for (int i = 0; i < shape.rank(); ++i) out.shape.push_back(shape[i]);
  return out;
}

}  // namespace

void Engine::save_trainer_state(const std::string& to) {
  const std::filesystem::path folder = std::filesystem::path(to) / "trainer";
  create_folders(folder.string());
  thread_->exclude_idle(true);
  thread_->run([&] {
    std::vector<TensorToWrite> tensors;
    for (size_t i = 0; i < store_->parameters().size(); ++i) {
      const Parameter& parameter = store_->parameters()[i];
      if (!parameter.trains()) continue;
      const std::string name = parameter.spec->name();
      const Shape& shape = parameter.spec->shape;
      const auto moment = [this](ConstView view, std::byte* bytes) {
        const std::vector<double> values = download(view);
        const std::vector<float> narrow(values.begin(), values.end());
        std::memcpy(bytes, narrow.data(), narrow.size() * sizeof(float));
      };
      tensors.push_back(f32_tensor(
          "m." + name, shape, [=, this](std::byte* bytes) { moment(optimizer_->first_moment(i), bytes); }));
      tensors.push_back(f32_tensor(
          "v." + name, shape, [=, this](std::byte* bytes) { moment(optimizer_->second_moment(i), bytes); }));
      tensors.push_back(f32_tensor("master." + name, shape, [=, this](std::byte* bytes) {
        store_->read_value(i, {reinterpret_cast<float*>(bytes), static_cast<size_t>(shape.size())});
      }));
    }
    write_safetensors((folder / "optimizer.safetensors").string(), tensors, {{"format", "lathe-1"}});
    const nlohmann::json state{{"format", 1},
                               {"step", step_},
                               {"applied_steps", optimizer_->applied_steps()},
                               {"loss_window", optimizer_->loss_window().values()},
                               {"grad_norm_window", optimizer_->norm_window().values()}};
    write_file_atomically((folder / "state.json").string(), state.dump(1) + "\n");
  });
  thread_->exclude_idle(false);
}

}  // namespace lathe
