#include "lathe/kernels/moe_dispatch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lathe/core/rng.h"

#include "support/kernel_test.h"

namespace lathe::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<int32_t>;

struct Sorted {
  HostArray offsets;
  HostArray slot_of_row;
  HostArray row_of_slot;
  int64_t top_k = 1;
  int64_t wanted = 0;
  [[nodiscard]] int64_t used() const { return static_cast<int64_t>(offsets.values.back()); }
};

Sorted sort(const Device& device, const MoeSortParams& params, int64_t capacity, const HostArray& expert) {
  const Tensor offsets = poisoned(device, {params.count + 1}, DType::kI32);
  const Tensor slot_of_row = poisoned(device, {capacity}, DType::kI32);
  const Tensor row_of_slot = poisoned(device, {expert.size()}, DType::kI32);
  const Tensor wanted = poisoned(device, {1}, DType::kI32);
  device.kernels.moe_sort(*device.queue, params, to_device(device, expert, DType::kI32), offsets, slot_of_row,
                          row_of_slot, wanted);
  Sorted out{to_host(device, offsets), to_host(device, slot_of_row), to_host(device, row_of_slot),
             expert.shape[1], device.kernels.moe_wanted(*device.queue, wanted)};
  // What lies beyond the routed rows is nobody's business.
  for (int64_t r = out.used(); r < capacity; ++r) out.slot_of_row[r] = 0;
  return out;
}

// All experts, and room for every slot.
Sorted sort(const Device& device, int64_t experts, const HostArray& expert) {
  return sort(device, {experts, 0, experts}, expert.size(), expert);
}

HostArray gather(const Device& device, const Sorted& sorted, const HostArray& x) {
  const Tensor rows = poisoned(device, {sorted.slot_of_row.size(), x.shape[1]});
  device.kernels.moe_gather(*device.queue, sorted.top_k, to_device(device, x),
                            to_device(device, sorted.slot_of_row, DType::kI32),
                            to_device(device, sorted.offsets, DType::kI32), rows);
  return to_host(device, rows);
}

HostArray combine(const Device& device, const Sorted& sorted, const HostArray& rows, const HostArray* weight,
                  int64_t tokens) {
  const Tensor out = poisoned(device, {tokens, rows.shape[1]});
  Tensor weights;
  if (weight != nullptr) weights = to_device(device, *weight);
  device.kernels.moe_combine(*device.queue, to_device(device, rows), weights,
                             to_device(device, sorted.row_of_slot, DType::kI32), out);
  return to_host(device, out);
}

// Every third token is not routed.
HostArray random_experts(int64_t tokens, int64_t top_k, int64_t experts) {
  const CounterRng rng(5, 5);
  HostArray out(Shape{tokens, top_k});
  for (int64_t t = 0; t < tokens; ++t) {
    const auto first =
        static_cast<int64_t>(rng.uniform(static_cast<uint64_t>(t)) * static_cast<double>(experts));
    for (int64_t j = 0; j < top_k; ++j) {
      out[t * top_k + j] = t % 3 == 2 ? -1.0 : static_cast<double>((first + 2 * j) % experts);
    }
  }
  return out;
}

template <typename Fn>
void on_all_devices(const Fn& fn) {
  fn(make_ref_device(DType::kF64));
  fn(make_ref_device(DType::kF32));
  for (const Isa isa : isas_at_hand()) {
    fn(make_cpu_device(isa, 1));
    fn(make_cpu_device(isa, 2));
  }
}

TEST(MoeDispatch, SortByHand) {
  on_all_devices([](const Device& device) {
    const Sorted sorted = sort(device, 4, integer_array({4, 2}, {2, 0, -1, -1, 0, 3, 2, 0}));
    EXPECT_EQ(sorted.offsets.values, (std::vector<double>{0, 3, 3, 5, 6}));
    EXPECT_EQ(sorted.slot_of_row.values, (std::vector<double>{1, 4, 7, 0, 6, 5, 0, 0}));
    EXPECT_EQ(sorted.row_of_slot.values, (std::vector<double>{3, 0, -1, -1, 1, 5, 4, 2}));
    std::vector<int64_t> counts(4, -7);
    device.kernels.moe_counts(*device.queue, to_device(device, sorted.offsets, DType::kI32), counts);
    EXPECT_EQ(counts, (std::vector<int64_t>{3, 0, 2, 1}));
  });
}

TEST(MoeDispatch, AllDevicesAgree) {
  const Device ref = make_ref_device();
  struct Size {
    int64_t tokens, top_k, experts, dim;
  };
  for (const Size size : {Size{1, 1, 1, 1}, Size{37, 2, 5, 19}, Size{101, 4, 33, 64}, Size{70, 3, 300, 7}}) {
    const HostArray expert = random_experts(size.tokens, size.top_k, size.experts);
    const HostArray x = random_array({size.tokens, size.dim}, 1);
    const HostArray rows = random_array({size.tokens * size.top_k, size.dim}, 2);
    const HostArray weight = random_array(expert.shape, 3);
    const Sorted want = sort(ref, size.experts, expert);
    const HostArray want_combined = combine(ref, want, rows, &weight, size.tokens);
    on_all_devices([&](const Device& device) {
      const Sorted got = sort(device, size.experts, expert);
      expect_same(got.offsets, want.offsets, "offsets");
      expect_same(got.slot_of_row, want.slot_of_row, "slot_of_row");
      expect_same(got.row_of_slot, want.row_of_slot, "row_of_slot");
      const HostArray gathered = gather(device, want, x);
      for (int64_t r = 0; r < want.used(); ++r) {
        const auto token = static_cast<int64_t>(want.slot_of_row[r]) / size.top_k;
        for (int64_t i = 0; i < size.dim; ++i) {
          EXPECT_NEAR(gathered[r * size.dim + i], x[token * size.dim + i], 1e-6);
        }
      }
      expect_near(combine(device, want, rows, &weight, size.tokens), want_combined, 1e-6, "combined");
    });
  }
}

TEST(MoeDispatch, CombineIsTheTransposeOfGather) {
  const Device ref = make_ref_device();
  const Sorted sorted = sort(ref, 6, random_experts(13, 3, 6));
  check_gradients(
      {"x"}, {random_array({13, 5}, 4)},
      [&](const auto& in) {
        HostArray rows = gather(ref, sorted, in[0]);
        for (int64_t i = sorted.used() * 5; i < rows.size(); ++i) rows[i] = 0;
        return std::vector{rows};
      },
      [&](const auto& /*in*/, const auto& cotangents) {
        return std::vector{combine(ref, sorted, cotangents[0], nullptr, 13)};
      });
}

TEST(MoeDispatch, RowsBeyondTheLastAreNeverRead) {
  on_all_devices([](const Device& device) {
    const HostArray expert = random_experts(40, 2, 4);
    const Sorted sorted = sort(device, 4, expert);
    ASSERT_LT(sorted.used(), 80);
    HostArray rows = random_array({80, 9}, 6);
    HostArray weight = random_array({40, 2}, 7);
    for (int64_t i = sorted.used() * 9; i < rows.size(); ++i) rows[i] = kNan;
    for (int64_t s = 0; s < 80; ++s) {
      if (expert[s] < 0) weight[s] = kNan;
    }
    for (const HostArray* w :
         {static_cast<const HostArray*>(nullptr), static_cast<const HostArray*>(&weight)}) {
      const HostArray out = combine(device, sorted, rows, w, 40);
      for (int64_t t = 0; t < 40; ++t) {
        for (int64_t i = 0; i < 9; ++i) {
          EXPECT_TRUE(std::isfinite(out[t * 9 + i]));
          if (t % 3 == 2) {
            EXPECT_EQ(out[t * 9 + i], 0);
          }
        }
      }
    }
    // gather writes the routed rows and no other
    HostArray x = random_array({40, 9}, 8);
    for (int64_t t = 2; t < 40; t += 3) {
      for (int64_t i = 0; i < 9; ++i) x[t * 9 + i] = kNan;
    }
    const HostArray gathered = gather(device, sorted, x);
    for (int64_t i = 0; i < gathered.size(); ++i)
      EXPECT_EQ(std::isfinite(gathered[i]), i < sorted.used() * 9);
  });
}

TEST(MoeDispatch, AWindowOfExpertsByHand) {
  on_all_devices([](const Device& device) {
    const HostArray expert = integer_array({5, 2}, {2, 0, 1, -1, 2, 3, 2, 1, 1, 2});
    const Sorted all = sort(device, {4, 1, 2}, 7, expert);
    EXPECT_EQ(all.offsets.values, (std::vector<double>{0, 3, 7}));
    EXPECT_EQ(all.slot_of_row.values, (std::vector<double>{2, 7, 8, 0, 4, 6, 9}));
    EXPECT_EQ(all.row_of_slot.values, (std::vector<double>{3, -1, 0, -1, 4, -1, 5, 1, 2, 6}));
    EXPECT_EQ(all.wanted, 7);
    // The last tokens of the highest expert are dropped first.
    const Sorted five = sort(device, {4, 1, 2}, 5, expert);
    EXPECT_EQ(five.offsets.values, (std::vector<double>{0, 3, 5}));
    EXPECT_EQ(five.row_of_slot.values, (std::vector<double>{3, -1, 0, -1, 4, -1, -1, 1, 2, -1}));
    EXPECT_EQ(five.wanted, 7);
    const Sorted two = sort(device, {4, 1, 2}, 2, expert);
    EXPECT_EQ(two.offsets.values, (std::vector<double>{0, 2, 2}));
    EXPECT_EQ(two.slot_of_row.values, (std::vector<double>{2, 7}));
    EXPECT_EQ(two.wanted, 7);
    const Sorted none = sort(device, {4, 1, 2}, 0, expert);
    EXPECT_EQ(none.offsets.values, (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(none.row_of_slot.values, (std::vector<double>(10, -1)));
    const Sorted nobody = sort(device, {4, 4, 0}, 3, expert);
    EXPECT_EQ(nobody.offsets.values, (std::vector<double>{0}));
    EXPECT_EQ(nobody.wanted, 0);
  });
}

// The windows of several ranks with room for every slot, taken together, are the sort of all experts; with less room each
// keeps the first rows of that.
TEST(MoeDispatch, WindowsAreCutFromTheSortOfAllExperts) {
  const Device ref = make_ref_device();
  for (const int64_t experts : {8, 7}) {
    const HostArray expert = random_experts(61, 3, experts);
    const Sorted all = sort(ref, experts, expert);
    for (const int64_t ranks : {1, 2, 4}) {
      const int64_t width = (experts + ranks - 1) / ranks;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t first = std::min(rank * width, experts);
        const int64_t count = std::min(width, experts - first);
        const auto begin = static_cast<int64_t>(all.offsets[first]);
        const auto end = static_cast<int64_t>(all.offsets[first + count]);
        for (const int64_t capacity : {end - begin + 3, end - begin, end - begin - 1, (end - begin) / 3}) {
          on_all_devices([&](const Device& device) {
            const Sorted mine = sort(device, {experts, first, count}, std::max<int64_t>(capacity, 0), expert);
            EXPECT_EQ(mine.wanted, end - begin);
            ASSERT_EQ(mine.used(), std::clamp<int64_t>(capacity, 0, end - begin));
            for (int64_t e = 0; e <= count; ++e) {
              EXPECT_EQ(mine.offsets[e], std::min<double>(all.offsets[first + e] - static_cast<double>(begin),
                                                          static_cast<double>(mine.used())));
            }
            for (int64_t r = 0; r < mine.used(); ++r)
              EXPECT_EQ(mine.slot_of_row[r], all.slot_of_row[begin + r]);
            for (int64_t s = 0; s < expert.size(); ++s) {
              const double row = all.row_of_slot[s] - static_cast<double>(begin);
              const bool kept = row >= 0 && row < static_cast<double>(mine.used());
              EXPECT_EQ(mine.row_of_slot[s], kept ? row : -1);
            }
          });
        }
      }
    }
  }
}

// Positions of `keys` in the order of a stable sort.
std::vector<int64_t> stable_order(const std::vector<int64_t>& keys) {
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return keys[static_cast<size_t>(a)] < keys[static_cast<size_t>(b)];
  });
  return order;
}

// Rows and their inverse come from counts; stable sorts of the choices of all experts say the same.
TEST(MoeDispatch, CountedMapsAreThoseOfAStableSort) {
  for (const int64_t experts : {1, 6, 16}) {
    const CounterRng rng(17, static_cast<uint64_t>(experts));
    HostArray expert(Shape{157, 4});  // the same one twice in a token, too
    std::vector<int64_t> keys;        // what is not routed comes last
    for (int64_t s = 0; s < expert.size(); ++s) {
      const double drawn = rng.uniform(static_cast<uint64_t>(s)) * static_cast<double>(experts + 1);
      keys.push_back(static_cast<int64_t>(drawn));
      expert[s] = keys.back() == experts ? -1.0 : static_cast<double>(keys.back());
    }
    const std::vector<int64_t> order = stable_order(keys);
    const std::vector<int64_t> inverse = stable_order(order);
    for (const int64_t ranks : {1, 2, 4}) {
      const int64_t width = (experts + ranks - 1) / ranks;
      for (int64_t first = 0; first < experts; first += width) {
        const int64_t end = std::min(first + width, experts);
        const auto begin = std::count_if(keys.begin(), keys.end(), [&](int64_t key) { return key < first; });
        const auto inside =
            std::count_if(keys.begin(), keys.end(), [&](int64_t key) { return key >= first && key < end; });
        on_all_devices([&](const Device& device) {
          const Sorted got = sort(device, {experts, first, end - first}, expert.size(), expert);
          ASSERT_EQ(got.used(), inside);
          for (int64_t r = 0; r < inside; ++r)
            ASSERT_EQ(got.slot_of_row[r], order[static_cast<size_t>(begin + r)]) << "row " << r;
          for (int64_t s = 0; s < expert.size(); ++s) {
            const int64_t key = keys[static_cast<size_t>(s)];
            const bool mine = key >= first && key < end;
            ASSERT_EQ(got.row_of_slot[s], mine ? inverse[static_cast<size_t>(s)] - begin : -1)
                << "slot " << s;
          }
        });
      }
    }
  }
}

// The path of a rank's experts with dropped slots: gather, weight, combine, and its backward; what lies beyond the rows
// kept is NaN all the way.
TEST(MoeDispatch, DroppedSlotsGiveNothingAndRowsBeyondAreNotRead) {
  on_all_devices([](const Device& device) {
    const int64_t tokens = 40;
    const int64_t width = 5;
    const HostArray expert = random_experts(tokens, 2, 8);
    const MoeSortParams window{8, 2, 4};
    const int64_t wanted = sort(device, window, 80, expert).wanted;
    const Sorted sorted = sort(device, window, wanted - 7, expert);
    const int64_t capacity = sorted.slot_of_row.size() + 4;  // a buffer with rows that nobody uses
    ASSERT_EQ(sorted.used(), wanted - 7);
    const Tensor slot_of_row = to_device(device, sorted.slot_of_row, DType::kI32);
    const Tensor offsets = to_device(device, sorted.offsets, DType::kI32);
    HostArray gate_up = random_array({capacity, 2 * width}, 2);
    HostArray dhp = random_array({capacity, width}, 3);
    for (int64_t i = sorted.used() * width; i < dhp.size(); ++i) {
      dhp[i] = kNan;
      gate_up[2 * i] = gate_up[2 * i + 1] = kNan;
    }
    const HostArray weight = random_array({tokens * 2}, 4);
    const Tensor d_gate_up = poisoned(device, gate_up.shape);
    const Tensor weighted_h = poisoned(device, dhp.shape);
    const Tensor d_weight = to_device(device, HostArray(weight.shape));
    device.kernels.weighted_swiglu_backward(*device.queue, to_device(device, dhp), to_device(device, gate_up),
                                            to_device(device, weight), slot_of_row, offsets, d_gate_up,
                                            d_weight, weighted_h);
    const HostArray dw = to_host(device, d_weight);
    int64_t routed = 0;
    for (int64_t s = 0; s < dw.size(); ++s) {
      EXPECT_TRUE(std::isfinite(dw[s]));
      EXPECT_EQ(dw[s] != 0, sorted.row_of_slot[s] >= 0);
      routed += dw[s] != 0 ? 1 : 0;
    }
    EXPECT_EQ(routed, sorted.used());
    const HostArray dx = combine(device, sorted, to_host(device, d_gate_up), nullptr, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      const bool kept = sorted.row_of_slot[2 * t] >= 0 || sorted.row_of_slot[2 * t + 1] >= 0;
      for (int64_t i = 0; i < 2 * width; ++i) {
        EXPECT_TRUE(std::isfinite(dx[t * 2 * width + i]));
        EXPECT_EQ(dx[t * 2 * width + i] != 0, kept);
      }
    }
  });
}

TEST(MoeDispatch, NothingRoutedAndNoTokens) {
  on_all_devices([](const Device& device) {
    const Sorted none = sort(device, 3, integer_array({4, 2}, Ints(8, -1)));
    EXPECT_EQ(none.offsets.values, (std::vector<double>{0, 0, 0, 0}));
    const HostArray rows(Shape{8, 3}, std::vector<double>(24, kNan));
    for (const double x : combine(device, none, rows, nullptr, 4).values) EXPECT_EQ(x, 0);

    const Sorted empty = sort(device, 3, HostArray(Shape{0, 2}));
    EXPECT_EQ(empty.offsets.values, (std::vector<double>{0, 0, 0, 0}));
    EXPECT_EQ(gather(device, empty, HostArray(Shape{0, 3})).size(), 0);
    EXPECT_EQ(combine(device, empty, HostArray(Shape{0, 3}), nullptr, 0).size(), 0);
  });
}

}  // namespace
}  // namespace lathe::test
