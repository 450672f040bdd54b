#include <csignal>

#include "lathe/cli/commands.h"
#include "lathe/engine/device_thread.h"

int main(int argc, char** argv) {
  const double start = lathe::steady_seconds();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is seen where it is written to
  return lathe::run_command_line(argc, argv, start);
}
