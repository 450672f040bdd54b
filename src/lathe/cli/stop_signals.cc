#include "lathe/cli/stop_signals.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

#include "lathe/core/error.h"

namespace lathe {
namespace {

// The one place where a signal handler and the program meet.
std::atomic<int> received_signal{0};
std::atomic<bool> steps_have_begun{false};
std::atomic<bool> is_told{true};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

struct sigaction before_term;
struct sigaction before_int;

// Async-signal-safe calls alone.
extern "C" void lathe_on_stop_signal(int signal) {
  if (!steps_have_begun.load()) {
    static constexpr char kMessage[] = "stopped before the first step: nothing was trained\n";
    if (is_told.load()) static_cast<void>(!::write(STDERR_FILENO, kMessage, sizeof kMessage - 1));
    ::_exit(static_cast<int>(ErrorKind::kRetryable));
  }
  const bool second = received_signal.exchange(signal) != 0;
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGTERM, &usual, nullptr);
  ::sigaction(SIGINT, &usual, nullptr);
  // Two at once may both come here, on two threads.
  if (second) ::raise(signal);
}

}  // namespace

StopSignals::StopSignals(bool tells) {
  is_told.store(tells);
  received_signal.store(0);
  steps_have_begun.store(false);
  struct sigaction action {};
  action.sa_handler = lathe_on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaddset(&action.sa_mask, SIGINT);
  ::sigaction(SIGTERM, &action, &before_term);
  ::sigaction(SIGINT, &action, &before_int);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGTERM, &before_term, nullptr);
  ::sigaction(SIGINT, &before_int, nullptr);
}

void StopSignals::started() {
  steps_have_begun.store(true);
}

std::string StopSignals::received() {
  const int signal = received_signal.load();
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "";
}

}  // namespace lathe
