// Memory of this machine, in one address range that is reserved at the start and grows as it is used. A new block takes
// the smallest free gap it fits into, neighbours that are freed become one gap again: what is resident stays close to the
// bytes alive at the peak whatever the sizes are, and steps after the first touch no new pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "lathe/core/memory.h"

namespace lathe {

class HostMemory final : public DeviceMemory {
 public:
  // poison: fill every new block with NaN patterns. std::bad_alloc when no address range can be had.
  explicit HostMemory(bool poison);
  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  void copy_from_host(View to, const void* from) override;
  void copy_to_host(void* to, ConstView from) override;

  // Bytes from the start of the range to the end of the highest block there ever was.
  [[nodiscard]] int64_t extent() const { return grown_; }

 protected:
  std::byte* acquire(int64_t bytes) override;
  void release(std::byte* data, int64_t bytes) override;

 private:
  void add_gap(int64_t begin, int64_t size);
  void remove_gap(std::map<int64_t, int64_t>::iterator gap);
  void grow(int64_t size);

  bool poison_;
  std::byte* base_ = nullptr;
  int64_t reserved_ = 0;
  int64_t grown_ = 0;
  std::map<int64_t, int64_t> gaps_;                     // begin -> size
  std::set<std::pair<int64_t, int64_t>> gaps_by_size_;  // (size, begin)
};

}  // namespace lathe
