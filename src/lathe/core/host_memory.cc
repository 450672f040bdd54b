#include "lathe/core/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lathe {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kGrowth = int64_t{2} << 20;  // also the size of a huge page

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What a block takes: at least one line more than asked for, so that equal power-of-two blocks do not lie at the same
// offset of a page, and so that an address sanitizer sees what runs over.
int64_t block_size(int64_t bytes) {
  return round_up(bytes, kAlignment) + kAlignment;
}

// Addresses cost nothing until they are used: room for whatever order blocks come in.
int64_t reservation() {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return round_up(4 * std::max(memory, int64_t{1} << 30), kGrowth);
}

}  // namespace

HostMemory::HostMemory(bool poison) : poison_(poison), reserved_(reservation()) {
  void* range = MAP_FAILED;
  for (; range == MAP_FAILED && reserved_ >= 2 * kGrowth;
       reserved_ /= 2) {  // a limit on addresses may forbid so many
    range = ::mmap(nullptr, static_cast<size_t>(reserved_), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED) break;
  }
  if (range == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(range);
  // Huge pages, where the kernel has them, save page faults and address translations. They begin at multiples of their
  // size: what lies before the first goes.
  const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(base_) % kGrowth);
  if (offset > 0) {
    ::munmap(base_, static_cast<size_t>(kGrowth - offset));
    base_ += kGrowth - offset;
    reserved_ -= kGrowth - offset;
  }
  static_cast<void>(::madvise(base_, static_cast<size_t>(reserved_), MADV_HUGEPAGE));
}

HostMemory::~HostMemory() {
  ASAN_UNPOISON_MEMORY_REGION(base_, static_cast<size_t>(grown_));
  ::munmap(base_, static_cast<size_t>(reserved_));
}

void HostMemory::copy_from_host(View to, const void* from) {
  if (to.bytes() > 0) std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
}

void HostMemory::copy_to_host(void* to, ConstView from) {
  if (from.bytes() > 0) std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
}

void HostMemory::add_gap(int64_t begin, int64_t size) {
  gaps_.emplace(begin, size);
  gaps_by_size_.emplace(size, begin);
}

void HostMemory::remove_gap(std::map<int64_t, int64_t>::iterator gap) {
  gaps_by_size_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

// Makes the gap at the end at least `size` long.
void HostMemory::grow(int64_t size) {
  const auto last = gaps_.empty() ? gaps_.end() : std::prev(gaps_.end());
  const bool open = last != gaps_.end() && last->first + last->second == grown_;
  const int64_t begin = open ? last->first : grown_;
  const int64_t end = round_up(begin + size, kGrowth);
  if (end > reserved_) throw std::bad_alloc();
  const auto added = static_cast<size_t>(end - grown_);
  if (::mprotect(base_ + grown_, added, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  ASAN_POISON_MEMORY_REGION(base_ + grown_, added);
  if (open) remove_gap(last);
  grown_ = end;
  add_gap(begin, end - begin);
}

std::byte* HostMemory::acquire(int64_t bytes) {
  const int64_t size = block_size(bytes);
  auto fitting = gaps_by_size_.lower_bound({size, 0});
  if (fitting == gaps_by_size_.end()) {
    grow(size);
    fitting = gaps_by_size_.lower_bound({size, 0});
  }
  const auto [gap_size, begin] = *fitting;
  remove_gap(gaps_.find(begin));
  if (gap_size > size) add_gap(begin + size, gap_size - size);
  std::byte* const block = base_ + begin;
  ASAN_UNPOISON_MEMORY_REGION(block, static_cast<size_t>(bytes));
  // 0xFF bytes are a NaN in every float type and -1 in every integer type.
  if (poison_) std::memset(block, 0xFF, static_cast<size_t>(bytes));
  return block;
}

void HostMemory::release(std::byte* data, int64_t bytes) {
  int64_t begin = data - base_;
  int64_t size = block_size(bytes);
  ASAN_POISON_MEMORY_REGION(data, static_cast<size_t>(size));
  const auto after = gaps_.lower_bound(begin);
  if (after != gaps_.end() && after->first == begin + size) {
    size += after->second;
    remove_gap(after);
  }
  const auto next = gaps_.lower_bound(begin);
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      remove_gap(before);
    }
  }
  add_gap(begin, size);
}

std::unique_ptr<DeviceMemory> make_host_memory(bool poison) {
  return std::make_unique<HostMemory>(poison);
}

}  // namespace lathe
