#include "lathe/loop/batch_source.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

std::vector<Trajectory> of_groups(const std::vector<std::string>& groups) {
  std::vector<Trajectory> out;
  for (size_t i = 0; i < groups.size(); ++i) {
    Trajectory t;
    t.line = static_cast<int64_t>(i) + 1;
    t.group = groups[i];
    out.push_back(t);
  }
  return out;
}

std::vector<std::vector<int64_t>> lines(const std::vector<std::vector<Trajectory>>& batches) {
  std::vector<std::vector<int64_t>> out;
  for (const auto& batch : batches) {
    out.emplace_back();
    for (const Trajectory& t : batch) out.back().push_back(t.line);
  }
  return out;
}

TEST(SplitByGroups, ZeroIsTheWholeFileAsItIs) {
  EXPECT_EQ(lines(split_by_groups(of_groups({"a", "b", "a"}), 0)),
            (std::vector<std::vector<int64_t>>{{1, 2, 3}}));
}

TEST(SplitByGroups, GroupsStayWholeAlsoWhenInterleavedOrLargerThanABatch) {
  EXPECT_EQ(lines(split_by_groups(of_groups({"a", "b", "a", "b", "c", "c"}), 4)),
            (std::vector<std::vector<int64_t>>{{1, 3, 2, 4}, {5, 6}}));
  EXPECT_EQ(lines(split_by_groups(of_groups({"a", "a", "a", "b"}), 2)),
            (std::vector<std::vector<int64_t>>{{1, 2, 3}, {4}}));
}

}  // namespace
}  // namespace lathe
