#include "lathe/mesh/mpi.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>

#include "lathe/core/error.h"
#include "lathe/mesh/ranked_communicator.h"
#include "lathe/mesh/transport.h"

namespace lathe {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;  // of one message: MPI counts in int
constexpr std::chrono::milliseconds kClosingPause{1};
// Of the message that tells why a rank failed: above the tags of exchanges (ranked_communicator.cc), below MPI's bound.
constexpr int kFailureTag = 1 << 22;
constexpr int kFailureBytes = 1000;
constexpr int kFailurePauses = 200;  // until it has left; it is small, and does not wait for its reader

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  retryable_error("mesh", fmt::format("{}: {}", call, text.data()),
                  "another rank, or the way to it, has failed");
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(const MeshShape& mesh, int rank) {
    int provided = 0;
    // Serialized: abort_ranks calls from another thread, when this one is gone.
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int ranks = 0;
    int own = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
    check(MPI_Comm_rank(MPI_COMM_WORLD, &own), "MPI_Comm_rank");
    LATHE_CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI allows no threads");
    LATHE_CHECK(ranks == mesh.size() && own == rank, "rank {} of {} by MPI, {} of {} by its environment", own,
                ranks, rank, mesh.size());
    ranks_ = ranks;
    rank_ = rank;
    check(MPI_Irecv(heard_.data(), kFailureBytes, MPI_CHAR, MPI_ANY_SOURCE, kFailureTag, MPI_COMM_WORLD,
                    &hearing_),
          "MPI_Irecv");
  }

  void post_send(int peer, int tag, const std::byte* data, int64_t bytes, int* left) override {
    for (int64_t begin = 0; begin < bytes; begin += kMostBytes) {
      const int count = static_cast<int>(std::min(kMostBytes, bytes - begin));
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Isend(data + begin, count, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request), "MPI_Isend");
      // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): progress() completes it
      add(request, {.left = left, .peer = peer}, begin > 0);
    }
  }

  void post_receive(int peer, int tag, std::byte* data, int64_t bytes, int* left) override {
    for (int64_t begin = 0; begin < bytes; begin += kMostBytes) {
      const int count = static_cast<int>(std::min(kMostBytes, bytes - begin));
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Irecv(data + begin, count, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request), "MPI_Irecv");
      // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): progress() completes it
      add(request, {.left = left, .peer = peer, .receives = count}, begin > 0);
    }
  }

  bool progress() override {
    listen();
    if (requests_.empty()) return false;
    over_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, over_.data(),
                                  statuses_.data());
    if (code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (count == 0 || count == MPI_UNDEFINED) return false;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const Message& message = messages_[static_cast<size_t>(over_[i])];
      check_arrived(message, statuses_[i], code == MPI_ERR_IN_STATUS);
      --*message.left;
    }
    size_t kept = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      messages_[kept++] = messages_[i];
    }
    requests_.resize(kept);
    messages_.resize(kept);
    return true;
  }

  [[nodiscard]] bool wakes() const override { return false; }

  // Sent by close(): MPI is the communication thread's.
  void fail(const std::string& reason) override {
    const std::lock_guard lock(reason_mutex_);
    if (reason_.empty()) reason_ = reason;
  }

  // Not clean: MPI_Finalize would wait for ranks that wait for this one. The process is about to end.
  void close(bool clean) override {
    if (!clean) {
      if (!has_heard_) tell();
      return;
    }
    check(MPI_Cancel(&hearing_), "MPI_Cancel");
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): of the constructor's MPI_Irecv
    check(MPI_Wait(&hearing_, MPI_STATUS_IGNORE), "MPI_Wait");
    // Others may write a checkpoint for minutes: wait without taking a core.
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
    for (int done = 0; done == 0;) {
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) std::this_thread::sleep_for(kClosingPause);
    }
    check(MPI_Finalize(), "MPI_Finalize");
  }

 private:
  // Throws when another rank has failed.
  void listen() {
    int heard = 0;
    MPI_Status status{};
    check(MPI_Test(&hearing_, &heard, &status), "MPI_Test");
    if (heard == 0) return;
    has_heard_ = true;
    int length = 0;
    check(MPI_Get_count(&status, MPI_CHAR, &length), "MPI_Get_count");
    throw PeerFailure(status.MPI_SOURCE, std::string(heard_.data(), static_cast<size_t>(length)));
  }

  void tell() {
    const std::lock_guard lock(reason_mutex_);
    const std::string text = (reason_.empty() ? "stopped by an error" : reason_).substr(0, kFailureBytes);
    std::copy(text.begin(), text.end(), told_.begin());
    std::vector<MPI_Request> sends;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      sends.push_back(MPI_REQUEST_NULL);
      MPI_Isend(told_.data(), static_cast<int>(text.size()), MPI_CHAR, peer, kFailureTag, MPI_COMM_WORLD,
                &sends.back());
    }
    int done = 0;
    for (int i = 0; i < kFailurePauses && done == 0; ++i) {
      if (MPI_Testall(static_cast<int>(sends.size()), sends.data(), &done, MPI_STATUSES_IGNORE) !=
          MPI_SUCCESS)
        return;
      if (done == 0) std::this_thread::sleep_for(kClosingPause);
    }
  }

  struct Message {
    int* left = nullptr;  // the count it belongs to
    int peer = 0;
    int receives = -1;  // bytes
  };

  void add(MPI_Request request, const Message& message, bool further_part) {
    requests_.push_back(request);
    messages_.push_back(message);
    if (further_part) ++*message.left;
  }

  // MPI takes a message that is shorter than its buffer for a whole one.
  static void check_arrived(const Message& message, MPI_Status& status, bool errors) {
    if (errors && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) {
      const std::string what = message.receives < 0 ? fmt::format("a message to rank {}", message.peer)
                                                    : fmt::format("a message of {} bytes from rank {}",
                                                                  message.receives, message.peer);
      check(status.MPI_ERROR, what.c_str());
    }
    if (message.receives < 0) return;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    LATHE_CHECK(bytes == message.receives, "rank {} sent {} bytes where {} were expected", message.peer,
                bytes, message.receives);
  }

  // By index.
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;
  std::vector<int> over_;
  std::vector<MPI_Status> statuses_;

  int ranks_ = 1;
  int rank_ = 0;
  std::array<char, kFailureBytes> heard_{};
  MPI_Request hearing_ = MPI_REQUEST_NULL;  // of the rank that fails, if one does
  bool has_heard_ = false;
  std::mutex reason_mutex_;
  std::string reason_;
  std::array<char, kFailureBytes> told_{};
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const MeshShape& mesh, DeviceMemory& memory) {
  const Launch launch = launch_from_environment();
  LATHE_CHECK(mesh.size() == launch.ranks, "a mesh of {} for {} ranks", mesh.size(), launch.ranks);
  if (launch.ranks == 1) return make_solo_communicator();
  const int rank = launch.rank;
  return make_ranked_communicator(mesh, rank, memory, [mesh, rank](const std::function<void()>& /*wake*/) {
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): its receive ends in close()
    return std::make_unique<MpiTransport>(mesh, rank);
  });
}

void abort_ranks(int code) {
  std::fflush(nullptr);
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data());
  return whole.substr(0, whole.find(','));
}

}  // namespace lathe
