// One rank of the MPI tests: mpi_ranks WHAT. Ends with 0 when everything it checked is right.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include <unistd.h>

#include "lathe/core/error.h"
#include "lathe/mesh/mpi.h"

#include "mesh/rank_values.h"

namespace lathe::test {
namespace {

MeshShape mesh_of(int ranks) {
  return ranks % 2 == 0 ? MeshShape{1, 2, ranks / 2, 1} : MeshShape{1, 1, ranks, 1};
}

Exchange exchange_of(AxisSet axes, Channel channel = Channel::kDevice) {
  return {.axes = axes, .phase = Phase::kForward, .tensor = "t", .channel = channel};
}

// Sums, gathers and moves of `elements`, small and large, against what they mean.
void check_collectives(Communicator& communicator, AxisSet axes, int64_t elements) {
  const std::vector<int> members = members_of(communicator, axes);
  const int size = communicator.size(axes);
  const int index = communicator.index(axes);
  std::vector<float> data = values_of(communicator.rank(), elements);
  // Small, so that it may overtake the first one.
  std::vector<float> other = values_of(communicator.rank(), 5, 1);
  Request first = communicator.start_all_reduce(exchange_of(axes), view_of(data));
  Request second = communicator.start_all_reduce(exchange_of(axes), view_of(other));
  second.wait();
  first.wait();
  for (int64_t k = 0; k < elements; ++k) {
    LATHE_CHECK(data[static_cast<size_t>(k)] == sum_of(members, k), "sum {}", k);
  }
  for (int64_t k = 0; k < 5; ++k)
    LATHE_CHECK(other[static_cast<size_t>(k)] == sum_of(members, k, 1), "small sum {}", k);
  std::vector<float> from = values_of(communicator.rank(), elements * size);
  std::vector<float> to(from.size());
  communicator.all_to_all(exchange_of(axes), view_of(from), view_of(to));
  for (int64_t k = 0; k < elements * size; ++k) {
    const int sender = members[static_cast<size_t>(k / elements)];
    LATHE_CHECK(to[static_cast<size_t>(k)] == value_of(sender, index * elements + k % elements), "moved {}",
                k);
  }
}

void check_all(Communicator& communicator) {
  for (const AxisSet axes : {kAxisAll, kAxisContext, kAxisFsdp}) {
    for (const int64_t elements : {1, 7, 300000}) check_collectives(communicator, axes, elements);
  }
  std::thread host([&communicator] {
    for (int i = 0; i < 200; ++i) {
      std::vector<double> values{1, static_cast<double>(communicator.rank())};
      communicator.all_reduce_sum(exchange_of(kAxisAll, Channel::kHost), values);
      LATHE_CHECK(values[0] == communicator.mesh().size(), "a sum of {}", values[0]);
      communicator.barrier(Channel::kHost);
    }
  });
  for (int i = 0; i < 20; ++i) check_collectives(communicator, kAxisAll, 1000);
  host.join();
}

// Rank 0 expects four numbers of the chosen one.
void mismatch(Communicator& communicator, bool chosen, int64_t sent) {
  std::vector<float> from = values_of(communicator.rank(), sent);
  std::vector<float> to(4);
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
  if (chosen) sends.push_back({0, view_of(from)});
  if (communicator.rank() == 0) receives.push_back({communicator.mesh().size() - 1, view_of(to)});
  communicator.send_recv(exchange_of(kAxisAll), sends, receives);
}

void run(Communicator& communicator, const std::string& what) {
  if (what == "collectives") return check_all(communicator);
  communicator.barrier(Channel::kHost);
  const bool chosen = communicator.rank() == communicator.mesh().size() - 1;
  if (chosen && what == "throw") data_error("rollouts.jsonl:7", "has no tokens");
  if (chosen && what == "kill") ::raise(SIGKILL);
  if (what == "short" || what == "long") mismatch(communicator, chosen, what == "short" ? 2 : 6);
  communicator.barrier(Channel::kHost);
}

int run_rank(const std::string& what) {
  try {
    const auto memory = make_host_memory(true);
    const auto communicator = make_communicator(mesh_of(launch_from_environment().ranks), *memory);
    try {
      run(*communicator, what);
    } catch (const Error& e) {
      communicator->fail(e.what());
      throw;
    }
  } catch (const PeerFailure& e) {
    std::fprintf(stderr, "rank %d: %s\n", launch_from_environment().rank, e.what());
    std::this_thread::sleep_for(std::chrono::seconds(10));  // that one ends this one
  } catch (const Error& e) {
    std::fprintf(stderr, "rank %d: %s\n", launch_from_environment().rank, e.what());
    abort_ranks(e.exit_code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", launch_from_environment().rank, e.what());
    abort_ranks(1);
  }
  return 0;
}

}  // namespace
}  // namespace lathe::test

int main(int argc, char** argv) {
  return lathe::test::run_rank(argc > 1 ? argv[1] : "");
}
