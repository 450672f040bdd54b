// The per-thread workspaces of a queue: shared by its implementations.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "lathe/core/parallel.h"

namespace lathe {

class ThreadWorkspaces {
 public:
  explicit ThreadWorkspaces(int threads) {
    for (int i = 0; i < threads; ++i) {
      auto* block = static_cast<std::byte*>(std::aligned_alloc(64, Queue::kThreadWorkspaceBytes));
      if (block == nullptr) throw std::bad_alloc();
      blocks_.emplace_back(block);
    }
  }
  [[nodiscard]] std::byte* of(int thread) const { return blocks_[static_cast<size_t>(thread)].get(); }

 private:
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
};

}  // namespace lathe
