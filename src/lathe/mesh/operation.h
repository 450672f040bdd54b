// One exchange as the communication thread does it: stages one after the other, each of messages, then copies within this
// rank, then sums in rank order. Built by collectives.h, done by exchange_thread.h.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "lathe/core/memory.h"

namespace lathe {

struct OutgoingMessage {
  int peer = 0;  // a rank of the world
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};
struct IncomingMessage {
  int peer = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};
struct LocalCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;
};
enum class Combine : uint8_t { kSum, kMax };
// to = sources[0] + sources[1] + ... element by element, in this order; accumulate: to + that. `to` may be one of the
// sources. The largest is NaN where a source is NaN.
struct RankOrderSum {
  DType dtype = DType::kF32;  // or f64
  int64_t elements = 0;
  std::vector<const std::byte*> sources;
  std::byte* to = nullptr;
  bool accumulate = false;
  Combine combine = Combine::kSum;
};
void run_sum(const RankOrderSum& sum);

struct Stage {
  std::vector<OutgoingMessage> sends;
  std::vector<IncomingMessage> receives;
  std::vector<LocalCopy> copies;
  std::vector<RankOrderSum> sums;
};

struct Operation {
  std::vector<Stage> stages;
  std::vector<Tensor> scratch;  // where parts of other ranks arrive; freed by the one who waits
  std::vector<std::vector<double>> host_parts;  // the same for host values
  int tag = 0;                                  // of stage 0; stage s has tag + s

  // The communication thread's.
  size_t stage = 0;
  int left = 0;  // messages of this stage on their way

  // Guarded by the communication thread's lock.
  bool done = false;
  std::exception_ptr error;
  double start_s = 0;
  double end_s = 0;
};

}  // namespace lathe
