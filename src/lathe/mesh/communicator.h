// The communicator: every exchange between ranks goes through it, by axis group, with the name of what is exchanged and
// the phase of the step, so that it can be counted (ledger.h). One rank is the mesh of all ones and runs the same program
// on the solo communicator, whose exchanges copy or do nothing.
//
// A group of `axes` holds the ranks that differ from this one in these axes only, in rank order (row-major: data, fsdp,
// context, expert). All ranks of a group make the same exchanges in the same order, per channel. Views are device memory.
// Reductions add in rank order, so equal layouts give equal bits; element types f32 and f64 (gathers and moves: any).
// Exchanges whose group has one rank copy where source and destination differ, and are not counted.
//
// `start_*` return at once: the exchange goes on beside the kernels that follow, and buffers belong to it until
// Request::wait returns. A peer that fails makes wait throw a PeerFailure with its rank and reason.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lathe/core/error.h"
#include "lathe/core/memory.h"
#include "lathe/core/view.h"

namespace lathe {

class Ledger;

// Sets of mesh axes, as bits; axes in rank order data, fsdp, context, expert (row-major).
using AxisSet = uint8_t;
inline constexpr AxisSet kAxisData = 1;
inline constexpr AxisSet kAxisFsdp = 2;
inline constexpr AxisSet kAxisContext = 4;
inline constexpr AxisSet kAxisExpert = 8;
inline constexpr AxisSet kAxisAll = 15;
// Dense weights are cut over these; rows of a micro-batch over the second, experts over the third.
inline constexpr AxisSet kAxesDense = kAxisFsdp | kAxisContext | kAxisExpert;
inline constexpr AxisSet kAxesRows = kAxisData | kAxisFsdp | kAxisExpert;
inline constexpr AxisSet kAxesExperts = kAxisContext | kAxisExpert;

struct MeshShape {
  int data = 1;
  int fsdp = 1;
  int context = 1;
  int expert = 1;
  [[nodiscard]] int size() const { return data * fsdp * context * expert; }
  [[nodiscard]] int size(AxisSet axes) const;
  // Index of `rank` within its group of `axes`.
  [[nodiscard]] int index(int rank, AxisSet axes) const;
  // The rank with index `index` in `rank`'s group of `axes`.
  [[nodiscard]] int member(int rank, AxisSet axes, int index) const;
  [[nodiscard]] bool operator==(const MeshShape&) const = default;
};

enum class Phase : uint8_t { kPrepare, kForward, kRemat, kBackward, kUpdate };
[[nodiscard]] const char* phase_name(Phase phase);

// Threads that exchange at the same time use channels of their own; within a channel order is the caller's.
enum class Channel : uint8_t { kDevice, kHost, kSaver };

struct Exchange {
  AxisSet axes = kAxisAll;
  Phase phase = Phase::kForward;
  const char* tensor =
      "";  // Hugging Face name of a weight, or the activation's name; lives as long as the run
  Channel channel = Channel::kDevice;
};

// Elements of a tensor of `elements` that rank `index` of `size` holds when it is cut flat: runs of ceil(elements / size),
// the last ones shorter or empty.
struct FlatShard {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
};
[[nodiscard]] FlatShard flat_shard(int64_t elements, int size, int index);

// `part` is this rank's share of `whole`. blocks = 1: the flat_shard of whole's elements. blocks > 1: whole is [blocks, size
// of the group, m], part is [blocks, m] (rows of a micro-batch cut by position).
struct GatherPiece {
  ConstView part;
  View whole;
  int64_t blocks = 1;
};
struct ReducePiece {
  ConstView whole;
  View part;
  int64_t blocks = 1;
  bool accumulate = false;  // add the sum to part instead of overwriting it
};
// One message of a point-to-point exchange; `peer` is an index in the group of axes. Pieces for the same peer meet in
// order. peer == own index: a copy.
struct SendPiece {
  int peer = 0;
  ConstView from;
};
struct ReceivePiece {
  int peer = 0;
  View to;
};

// An exchange on its way. Move-only; waits when destroyed.
class Request {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;  // throws what went wrong
  };
  Request() = default;
  explicit Request(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& other) noexcept;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request();
  void wait();
  [[nodiscard]] bool pending() const { return work_ != nullptr; }

 private:
  void end() noexcept;
  std::unique_ptr<Work> work_;
};

// Another rank gave up: "rank 2 failed: ...". That one ends the job.
class PeerFailure : public Error {
 public:
  PeerFailure(int rank, const std::string& reason);
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual const MeshShape& mesh() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] int size(AxisSet axes) const { return mesh().size(axes); }
  [[nodiscard]] int index(AxisSet axes) const {
    return mesh().index(rank(), axes);
  }  // of this rank in its group

  // Pieces of one call travel together and count as one exchange.
  [[nodiscard]] virtual Request start_all_gather(const Exchange& exchange,
                                                 std::span<const GatherPiece> pieces) = 0;
  [[nodiscard]] virtual Request start_reduce_scatter(const Exchange& exchange,
                                                     std::span<const ReducePiece> pieces) = 0;
  [[nodiscard]] virtual Request start_all_reduce(const Exchange& exchange, View data) = 0;
  // from and to: [size of the group, m]; part i of from goes to rank i, part j of to comes from rank j.
  [[nodiscard]] virtual Request start_all_to_all(const Exchange& exchange, ConstView from, View to) = 0;
  [[nodiscard]] virtual Request start_send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                                                std::span<const ReceivePiece> receives) = 0;

  void all_gather(const Exchange& exchange, ConstView part, View whole, int64_t blocks = 1) {
    const GatherPiece piece{part, whole, blocks};
    start_all_gather(exchange, {&piece, 1}).wait();
  }
  void reduce_scatter(const Exchange& exchange, ConstView whole, View part, int64_t blocks = 1) {
    const ReducePiece piece{whole, part, blocks};
    start_reduce_scatter(exchange, {&piece, 1}).wait();
  }
  void all_reduce(const Exchange& exchange, View data) { start_all_reduce(exchange, data).wait(); }
  void all_to_all(const Exchange& exchange, ConstView from, View to) {
    start_all_to_all(exchange, from, to).wait();
  }
  void send_recv(const Exchange& exchange, std::span<const SendPiece> sends,
                 std::span<const ReceivePiece> receives) {
    start_send_recv(exchange, sends, receives).wait();
  }

  // Host values, blocking, added in rank order: loss sums, denominators, metrics, the gradient norm.
  virtual void all_reduce_sum(const Exchange& exchange, std::span<double> values) = 0;
  virtual void all_reduce_max(const Exchange& exchange, std::span<double> values) = 0;
  virtual void barrier(Channel channel) = 0;

  // This rank gives up: its exchanges, under way and later ones, throw, and those of the others a PeerFailure. The first
  // reason counts. For whoever must join threads that may stand in wait() after an error. From any thread.
  virtual void fail(const std::string& /*reason*/) {}
  // Throws after that. For long work that exchanges nothing: whoever gives up waits for it.
  virtual void check() {}

  // What was exchanged so far; null on one rank.
  [[nodiscard]] virtual Ledger* ledger() = 0;
};

[[nodiscard]] std::unique_ptr<Communicator> make_solo_communicator();

// Makes a rank's communicator; what its exchanges need beside the views they are given comes from `memory`.
using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(DeviceMemory& memory)>;

}  // namespace lathe
