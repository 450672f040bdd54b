#include <omp.h>

#include "lathe/core/error.h"
#include "lathe/core/parallel.h"
#include "lathe/core/parallel_workspace.h"

namespace lathe {
namespace {

class OpenMpQueue final : public Queue {
 public:
  explicit OpenMpQueue(int threads) : threads_(threads), workspaces_(threads) {}

  [[nodiscard]] int threads() const override { return threads_; }
  [[nodiscard]] std::byte* thread_workspace(int thread) override { return workspaces_.of(thread); }

  void run(int64_t count, Task task, void* context) override {
    // Libraries called by tasks see one thread, also where they ask outside a parallel region.
    omp_set_num_threads(1);
    if (threads_ == 1 || count == 1) {
      for (int64_t i = 0; i < count; ++i) task(context, i, 0);
      return;
    }
#pragma omp parallel for num_threads(threads_) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) task(context, i, omp_get_thread_num());
  }

 private:
  int threads_;
  ThreadWorkspaces workspaces_;
};

}  // namespace

std::unique_ptr<Queue> make_queue(int threads) {
  LATHE_CHECK(threads >= 1, "{} threads", threads);
  return std::make_unique<OpenMpQueue>(threads);
}

const char* parallel_backend_name() {
  return "openmp";
}

}  // namespace lathe
