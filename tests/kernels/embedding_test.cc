#include "lathe/kernels/embedding.h"

#include <fmt/format.h>

#include "kernels/parity.h"

namespace lathe::test {
namespace {

constexpr int64_t kVocab = 11;

HostArray some_ids(int64_t tokens) {
  HostArray ids(Shape{tokens});
  for (int64_t t = 0; t < tokens; ++t) ids[t] = static_cast<double>((t * t + 3 * t) % kVocab);
  return ids;
}

HostArray forward(const Device& device, const HostArray& ids, const HostArray& table, DType table_type) {
  const Tensor x = poisoned(device, Shape{ids.size(), table.shape[1]});
  device.kernels.embedding_forward(*device.queue, to_device(device, ids, DType::kI32),
                                   to_device(device, table, table_type), x);
  return to_host(device, x);
}

HostArray backward(const Device& device, const HostArray& dx, const HostArray& ids, const HostArray& before) {
  const Tensor dtable = to_device(device, before);
  device.kernels.embedding_backward(*device.queue, to_device(device, dx), to_device(device, ids, DType::kI32),
                                    dtable);
  return to_host(device, dtable);
}

TEST(Embedding, PicksRows) {
  const HostArray table = random_array(Shape{kVocab, 5}, 1);
  const HostArray ids = some_ids(7);
  const HostArray x = forward(make_ref_device(), ids, table, DType::kF64);
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t c = 0; c < 5; ++c) EXPECT_EQ(x[t * 5 + c], table[static_cast<int64_t>(ids[t]) * 5 + c]);
  }
}

TEST(Embedding, Gradients) {
  const Device device = make_ref_device();
  const HostArray ids = some_ids(9);
  check_gradients(
      {"table"}, {random_array(Shape{kVocab, 3}, 1)},
      [&](const auto& in) { return std::vector<HostArray>{forward(device, ids, in[0], DType::kF64)}; },
      [&](const auto& in, const auto& dx) {
        return std::vector<HostArray>{backward(device, dx[0], ids, HostArray(in[0].shape))};
      });
}

TEST(Embedding, FastPathAgrees) {
  for (const int64_t tokens : {0, 1, 2, 17, 65, 200}) {
    for (const int64_t dim : {1, 7, 8, 15, 16, 17, 63, 65, 200}) {
      const HostArray ids = some_ids(tokens);
      const HostArray table = random_array(Shape{kVocab, dim}, 1);
      const HostArray dx = random_array(Shape{tokens, dim}, 2);
      expect_parity(fmt::format("{} x {}", tokens, dim), [&](const Device& d) {
        return std::vector<HostArray>{forward(d, ids, table, d.float_type()), backward(d, dx, ids, table)};
      });
    }
  }
}

TEST(Embedding, TableInBFloat16) {
  const HostArray table = random_array(Shape{kVocab, 37}, 1);
  const HostArray ids = some_ids(20);
  const Device single = make_ref_device(DType::kF32);
  const HostArray rounded = to_host(single, to_device(single, table, DType::kBF16));
  const HostArray expected = forward(single, ids, rounded, DType::kF32);
  expect_same(forward(single, ids, table, DType::kBF16), expected, "ref");
  for (const Isa isa : isas_at_hand()) {
    expect_same(forward(make_cpu_device(isa), ids, table, DType::kBF16), expected, isa_name(isa));
  }
}

// The sum runs in token order: in f32 the small terms vanish beside 1e8 unless they come after it has left
// again.
TEST(Embedding, GradientsAreSummedInTokenOrder) {
  const HostArray ids = integer_array(Shape{4}, {2, 2, 2, 2});
  const HostArray dx(Shape{4, 1}, {1, 1e8, -1e8, 1});
  const auto check = [&](const Device& device) {
    EXPECT_EQ(backward(device, dx, ids, HostArray(Shape{kVocab, 1}))[2], 1);
  };
  check(make_ref_device(DType::kF32));
  for (const Isa isa : isas_at_hand()) check(make_cpu_device(isa));
}

TEST(Embedding, IdsOutOfRangeAreCaught) {
  const HostArray table = random_array(Shape{kVocab, 3}, 1);
  for (const int32_t id : {-1, static_cast<int32_t>(kVocab)}) {
    const HostArray ids = integer_array(Shape{1}, {id});
    EXPECT_THROW(static_cast<void>(forward(make_ref_device(), ids, table, DType::kF64)), Error);
    EXPECT_THROW(static_cast<void>(forward(make_cpu_device(Isa::kAvx2, 1), ids, table, DType::kF32)), Error);
    EXPECT_THROW(
        static_cast<void>(backward(make_cpu_device(Isa::kAvx2, 1), HostArray(Shape{1, 3}), ids, table)),
        Error);
  }
}

}  // namespace
}  // namespace lathe::test
