#include "lathe/cli/stop_signals.h"

#include <array>
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

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};
std::array<struct sigaction, kSignals.size()> before;

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
  for (const int each : kSignals) ::sigaction(each, &usual, nullptr);
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
  for (const int each : kSignals) sigaddset(&action.sa_mask, each);
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before[i], nullptr);
}

void StopSignals::started() {
  steps_have_begun.store(true);
}

std::string StopSignals::received() {
  switch (received_signal.load()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "";
  }
}

}  // namespace lathe
