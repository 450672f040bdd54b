#include <set>

#include <gtest/gtest.h>

#include "lathe/mesh/communicator.h"

namespace lathe {
namespace {

struct Coordinates {
  int data, fsdp, context, expert;
};

Coordinates coordinates_of(const MeshShape& mesh, int rank) {
  return {mesh.index(rank, kAxisData), mesh.index(rank, kAxisFsdp), mesh.index(rank, kAxisContext),
          mesh.index(rank, kAxisExpert)};
}

int rank_of(const MeshShape& mesh, const Coordinates& at) {
  return ((at.data * mesh.fsdp + at.fsdp) * mesh.context + at.context) * mesh.expert + at.expert;
}

TEST(MeshShapeTest, RanksAreRowMajor) {
  for (const MeshShape& mesh :
       {MeshShape{}, MeshShape{2, 3, 4, 5}, MeshShape{1, 2, 1, 3}, MeshShape{1, 2, 2, 2}}) {
    for (int rank = 0; rank < mesh.size(); ++rank) EXPECT_EQ(rank_of(mesh, coordinates_of(mesh, rank)), rank);
  }
}

TEST(MeshShapeTest, MembersDifferInTheirAxesOnly) {
  const MeshShape mesh{2, 3, 2, 2};
  for (int axes = 0; axes <= kAxisAll; ++axes) {
    const auto set = static_cast<AxisSet>(axes);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      EXPECT_EQ(mesh.member(rank, set, mesh.index(rank, set)), rank);
      std::set<int> members;
      int last = -1;
      for (int i = 0; i < mesh.size(set); ++i) {
        const int member = mesh.member(rank, set, i);
        EXPECT_EQ(mesh.index(member, set), i);
        EXPECT_EQ(mesh.index(member, kAxisAll & ~set), mesh.index(rank, kAxisAll & ~set));
        EXPECT_GT(member, last);  // in rank order
        last = member;
        members.insert(member);
      }
      EXPECT_EQ(members.size(), static_cast<size_t>(mesh.size(set)));
    }
  }
}

TEST(MeshShapeTest, ExpertGroupsAreContextMajor) {
  const MeshShape mesh{1, 2, 2, 2};
  // Ranks 4..7 are fsdp 1: context 0 expert 0, context 0 expert 1, context 1 expert 0, context 1 expert 1.
  EXPECT_EQ(mesh.member(5, kAxesExperts, 2), 6);
  EXPECT_EQ(mesh.index(6, kAxesExperts), 2);
  EXPECT_EQ(mesh.member(5, kAxisContext, 1), 7);
  EXPECT_EQ(mesh.member(5, kAxisFsdp, 0), 1);
}

TEST(MeshShapeTest, FlatShardsCoverAllAndMayBeEmpty) {
  for (const int64_t elements : {0, 1, 5, 8, 1000, 1001}) {
    for (const int size : {1, 2, 3, 4, 8}) {
      int64_t end = 0;
      for (int i = 0; i < size; ++i) {
        const FlatShard shard = flat_shard(elements, size, i);
        EXPECT_EQ(shard.begin, end);
        EXPECT_LE(shard.size(), (elements + size - 1) / size);
        end = shard.end;
      }
      EXPECT_EQ(end, elements);
    }
  }
  EXPECT_EQ(flat_shard(5, 4, 0).size(), 2);
  EXPECT_EQ(flat_shard(5, 4, 2).size(), 1);
  EXPECT_EQ(flat_shard(5, 4, 3).size(), 0);
}

}  // namespace
}  // namespace lathe
