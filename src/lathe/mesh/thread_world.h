// Ranks that are threads of one process, for tests: the same communicator as over MPI, on messages that are copied from
// one rank's memory to another's.
#pragma once

#include <memory>
#include <string>

#include "lathe/core/memory.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

class ThreadWorld {
 public:
  explicit ThreadWorld(const MeshShape& mesh);
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  // Once per rank, from any thread. Whoever waits for a rank whose communicator is gone gets an error; where it went because
  // of an exception, fail() must follow. `memory` (scratch of reductions) outlives it.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(int rank, DeviceMemory& memory);
  // `rank` gives up: every exchange of every rank, under way or later, throws a retryable error with rank and reason.
  void fail(int rank, const std::string& reason);

  struct Mailboxes;

 private:
  MeshShape mesh_;
  std::shared_ptr<Mailboxes> mailboxes_;
};

}  // namespace lathe
