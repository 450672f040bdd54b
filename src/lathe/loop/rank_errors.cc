#include "lathe/loop/rank_errors.h"

#include <span>

#include "lathe/engine/engine.h"
#include "lathe/loop/agreement.h"

namespace lathe {
namespace {

double largest(Communicator& communicator, double value) {
  communicator.all_reduce_max(run_exchange(), std::span(&value, 1));
  return value;
}

struct Failure {
  bool there = false;
  bool of_a_peer = false;  // which has the reason
  ErrorKind kind = ErrorKind::kInternal;
  std::string what;
  std::string hint;
};

Failure failure_of(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  try {
    std::rethrow_exception(error);
  } catch (const PeerSaveError& e) {
    return {.there = true, .of_a_peer = true, .kind = e.kind(), .what = e.what(), .hint = e.hint()};
  } catch (const Error& e) {
    return {.there = true, .of_a_peer = false, .kind = e.kind(), .what = e.what(), .hint = e.hint()};
  } catch (const std::exception& e) {
    return {.there = true,
            .of_a_peer = false,
            .kind = ErrorKind::kInternal,
            .what = std::string("internal: ") + e.what(),
            .hint = "this is a bug in lathe: please report it with the output of `lathe env`"};
  }
}

}  // namespace

void agree_on_failure(Communicator& communicator, const std::exception_ptr& own) {
  const int ranks = communicator.mesh().size();
  if (ranks == 1) {
    if (own != nullptr) std::rethrow_exception(own);
    return;
  }
  const Failure failure = failure_of(own);
  // The first rank with a reason of its own counts, before those that have heard of another's.
  const int weight = !failure.there ? 0 : ranks - communicator.rank() + (failure.of_a_peer ? 0 : ranks);
  const int most = static_cast<int>(largest(communicator, weight));
  if (most == 0) return;
  const int rank = most > ranks ? 2 * ranks - most : ranks - most;
  const auto kind = static_cast<ErrorKind>(static_cast<int>(
      largest(communicator, communicator.rank() == rank ? static_cast<int>(failure.kind) : 0)));
  const std::string what = text_of_rank(communicator, rank, failure.what);
  const std::string hint = text_of_rank(communicator, rank, failure.hint);
  throw AgreedError(kind, rank == 0 ? "" : fmt::format("rank {}", rank), what, hint);
}

}  // namespace lathe
