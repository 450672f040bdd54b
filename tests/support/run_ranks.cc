#include "support/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "lathe/core/memory.h"

namespace lathe::test {

void run_ranks_of(const MeshShape& mesh, const std::function<void(ThreadWorld& world, int rank)>& run) {
  ThreadWorld world(mesh);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::string reason = "unknown exception";
      try {
        return run(world, rank);
      } catch (const std::exception& e) {
        reason = e.what();
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
      world.fail(rank, reason);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

void run_ranks(const MeshShape& mesh, const std::function<void(Communicator& communicator)>& run) {
  run_ranks_of(mesh, [&run](ThreadWorld& world, int rank) {
    const auto memory = make_host_memory(/*poison=*/true);
    const auto communicator = world.communicator(rank, *memory);
    run(*communicator);
  });
}

}  // namespace lathe::test
