// Errors of one rank that all ranks of a run hear of.
//
// Where all ranks come to the same place, they agree on what went wrong and end in order (AgreedError). Where one fails
// alone, it tells the others why before it ends them (told_to_ranks); they get a PeerFailure out of their exchanges.
#pragma once

#include <exception>
#include <string>

#include "lathe/core/error.h"
#include "lathe/core/log.h"
#include "lathe/mesh/communicator.h"

namespace lathe {

// Thrown by all ranks at the same place: nobody waits for anybody, so each closes its communicator in order, one of them
// tells the error, and all end with its exit code.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Called by all ranks, each with what it failed with, or null. Throws the failure of the first rank that has one, with its
// number if it is not rank 0; returns when none has. On one rank: throws `own` as it is.
void agree_on_failure(Communicator& communicator, const std::exception_ptr& own);

// Runs work(). What it throws is told to the other ranks, unless they have it too; what another rank failed with is logged.
template <typename Work>
auto told_to_ranks(Communicator& communicator, Log& log, Work&& work) {
  try {
    return work();
  } catch (const AgreedError&) {
    throw;
  } catch (const PeerFailure& failure) {
    log.warning("{}", failure.what());
    throw;
  } catch (const std::exception& error) {
    communicator.fail(error.what());
    throw;
  }
}

}  // namespace lathe
