// Queue: where kernels run. Kernels run parallel work only through parallel_for; the thread that owns the
// queue (the device thread) is the only one that calls it. Results must not depend on the number of threads:
// work is cut into tasks of fixed size, each task writes what no other task writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace lathe {

class Queue {
 public:
  // Scratch of one thread inside parallel_for. Kernels must fit their tiles into it.
  static constexpr int64_t kThreadWorkspaceBytes = int64_t{6} << 20;
  using Task = void (*)(void* context, int64_t index, int thread);

  virtual ~Queue() = default;
  [[nodiscard]] virtual int threads() const = 0;
  // Calls task(context, i, thread) for i in [0, count), each once, in any order, on any thread in [0,
  // threads()).
  // What a task throws is thrown here, once all threads are done; tasks not begun are left out.
  virtual void run(int64_t count, Task task, void* context) = 0;
  // 64-byte aligned, kThreadWorkspaceBytes long, for the task that runs on `thread`; contents undefined.
  [[nodiscard]] virtual std::byte* thread_workspace(int thread) = 0;
};

// fn(index) or fn(index, thread).
template <typename Fn>
[[gnu::always_inline]] inline void parallel_for(Queue& queue, int64_t count, Fn&& fn) {
  using Function = std::remove_reference_t<Fn>;
  if (count <= 0) return;
  queue.run(
      count,
      [](void* context, int64_t index, int thread) {
        auto& f = *static_cast<Function*>(context);
        if constexpr (std::is_invocable_v<Function&, int64_t, int>) {
          f(index, thread);
        } else {
          static_cast<void>(thread);
          f(index);
        }
      },
      const_cast<std::remove_const_t<Function>*>(&fn));
}

// threads >= 1: the calling thread and threads - 1 others that wait between calls.
[[nodiscard]] std::unique_ptr<Queue> make_queue(int threads);
// Cores this process may use (its affinity mask), at least 1.
[[nodiscard]] int available_cores();

}  // namespace lathe
