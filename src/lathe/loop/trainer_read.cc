// The next batch of a run: waited for by the leading rank, read by all of them.
#include <exception>

#include "lathe/core/error.h"
#include "lathe/loop/agreement.h"
#include "lathe/loop/rank_errors.h"
#include "lathe/loop/trainer.h"

namespace lathe {
namespace {

// What all ranks failed with, or null.
std::exception_ptr agreed_failure(Communicator& communicator, const std::exception_ptr& own) {
  try {
    agree_on_failure(communicator, own);
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error&) {
    return std::current_exception();
  }
  return nullptr;
}

// What makes a batch unusable, and costs none of the steps before it.
bool is_of_data(const Error& error) {
  return error.kind() == ErrorKind::kData || error.kind() == ErrorKind::kRetryable;
}

}  // namespace

Trainer::ReadAhead Trainer::wait_for_file(std::exception_ptr* failure) {
  try {
    // Left off: stop_wanted() says so again, at the beginning of the next step.
    const bool there = source_.wait([this] {
      while_waiting([&] { static_cast<void>(look_over_ranks(ReadAhead::kWaits)); });
      return !stop_reason_.empty();
    });
    return there ? ReadAhead::kThere : ReadAhead::kLeftOff;
  } catch (const Error& error) {
    if (failed_while_waiting_ || !is_of_data(error)) throw;
    *failure = std::current_exception();
    return ReadAhead::kFailed;
  }
}

std::exception_ptr Trainer::read_batch() {
  std::exception_ptr failure;
  try {
    feed_.read();
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& error) {
    if (!is_of_data(error)) throw;
    failure = std::current_exception();
  }
  failure = agreed_failure(*communicator_, failure);
  if (failure != nullptr) return failure;
  try {
    check_same_contents(*communicator_, feed_.ahead().digest, feed_.ahead().file);
  } catch (const AgreedError&) {
    failure = std::current_exception();
  }
  return failure;
}

// The leading rank waits for a file that is to come, and tells the others how that ended; then all of them read it.
void Trainer::read_ahead() {
  if (feed_.has_batch()) return;
  std::exception_ptr failure;
  ReadAhead found = leads() ? wait_for_file(&failure) : ReadAhead::kThere;
  for (;;) {
    found = look_over_ranks(found);
    if (found != ReadAhead::kWaits) break;
    before_wait();
    found = ReadAhead::kThere;
  }
  if (found == ReadAhead::kFailed) failure = agreed_failure(*communicator_, failure);
  if (found == ReadAhead::kThere) failure = read_batch();
  if (failure != nullptr) end_after_save(failure);
}

void Trainer::end_after_save(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    log_.warning(
        "{}, the steps before it are saved: {}",
        error.kind() == ErrorKind::kData ? "the next batch cannot be used" : "the next batch is not there",
        error.what());
  }
  try {
    report_pending();
    start_save();
    finish_save();
  } catch (const AgreedError& error) {
    log_.warning("the steps before it could not be saved: {}", error.what());
  }
  std::rethrow_exception(failure);
}

void Trainer::before_wait() {
  if (!training_.has_value()) return;  // for the first file
  if (leads()) static_cast<void>(look_over_ranks(ReadAhead::kWaits));
  while_waiting([this] {
    report_pending();
    save_if_due();
  });
}

void Trainer::while_waiting(const std::function<void()>& work) {
  failed_while_waiting_ = true;
  work();
  failed_while_waiting_ = false;
}

}  // namespace lathe
