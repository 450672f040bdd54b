#include "lathe/mesh/launch.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "lathe/core/error.h"
#include "lathe/core/parallel.h"

namespace lathe {
namespace {

// The whole number that the variable holds, or `otherwise`.
int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): read at start-up
  if (text == nullptr) return otherwise;
  const std::string_view digits(text);
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && end == digits.data() + digits.size() ? value : otherwise;
}

}  // namespace

int Launch::cores() const {
  return std::max(1, available_cores() / host_ranks);
}

Launch launch_from_environment() {
  Launch launch;
  launch.ranks = std::max(1, number_of("OMPI_COMM_WORLD_SIZE", 1));
  const int foreign = number_of("PMI_SIZE", 1);
  if (launch.ranks == 1 && foreign > 1) {
    config_error("mesh",
                 fmt::format("this process is one of {} that another launcher started (PMI_SIZE)", foreign),
                 "start the ranks with Open MPI's mpirun");
  }
  launch.rank = std::clamp(number_of("OMPI_COMM_WORLD_RANK", 0), 0, launch.ranks - 1);
  launch.host_ranks = std::clamp(number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 1), 1, launch.ranks);
  return launch;
}

}  // namespace lathe
