#include "lathe/config/mesh.h"

#include "config/config_files.h"

namespace lathe {
namespace {

class MeshOfRunFile : public ConfigFiles {
 protected:
  MeshSection mesh(const std::vector<std::string>& sets, int ranks) const {
    return load_train_config(run_file(), sets, ranks).config.mesh;
  }
  std::string problem(const std::vector<std::string>& sets, int ranks) const {
    try {
      static_cast<void>(load_train_config(run_file(), sets, ranks));
    } catch (const ConfigProblems& e) {
      EXPECT_EQ(e.problems().size(), 1U) << e.what();
      return e.problems().front().what;
    }
    return "";
  }
};

TEST_F(MeshOfRunFile, AnAxisOfMinusOneTakesWhatIsLeft) {
  EXPECT_EQ(mesh({"mesh.fsdp=-1"}, 1).fsdp, 1);
  EXPECT_EQ(mesh({"mesh.fsdp=-1"}, 8).fsdp, 8);
  const MeshSection eight = mesh({"mesh.fsdp=2", "mesh.expert=-1", "mesh.context=2"}, 8);
  EXPECT_EQ(eight.data, 1);
  EXPECT_EQ(eight.fsdp, 2);
  EXPECT_EQ(eight.context, 2);
  EXPECT_EQ(eight.expert, 2);
  // As it is written into the run folder.
  const std::string text = resolved_config_text(load_train_config(run_file(), {"mesh.context=-1"}, 4));
  EXPECT_NE(text.find("  context: 4"), std::string::npos) << text;
}

TEST_F(MeshOfRunFile, SizesThatDoNotMultiplyToTheRanksAreNamed) {
  EXPECT_EQ(problem({"mesh.fsdp=2", "mesh.context=2"}, 6),
            "mesh (data 1, fsdp 2, context 2, expert 1) is of 4 ranks, this run has 6 ranks");
  EXPECT_EQ(problem({}, 2), "mesh (data 1, fsdp 1, context 1, expert 1) is of 1 rank, this run has 2 ranks");
  EXPECT_EQ(problem({"mesh.data=4", "mesh.expert=-1"}, 6),
            "mesh (data 4, fsdp 1, context 1, expert -1): 6 ranks cannot be divided by 4");
  EXPECT_EQ(problem({"mesh.data=-1", "mesh.expert=-1"}, 4),
            "mesh (data -1, fsdp 1, context 1, expert -1): two axes are -1");
  EXPECT_EQ(problem({"mesh.context=0"}, 1), "mesh (data 1, fsdp 1, context 0, expert 1): context is 0");
  EXPECT_EQ(problem({"mesh.fsdp=2", "mesh.data=2"}, 4), "");
  // And what follows from a refused key is not told.
  EXPECT_EQ(problem({"mesh.fsdp=-2"}, 2), "mesh.fsdp must be an integer in [-1, 32768], got -2");
  EXPECT_EQ(problem({"mesh.fspd=2"}, 2), "unknown option 'mesh.fspd'");
}

}  // namespace
}  // namespace lathe
