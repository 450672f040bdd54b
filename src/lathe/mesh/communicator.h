// The communicator: every exchange between ranks goes through it, by axis group, with the name of what is exchanged and
// the phase of the step, so that it can be counted. One rank is the mesh of all ones and runs the same program on the
// solo communicator, whose exchanges copy or do nothing.
// Shapes: `part` is this rank's share; `whole` has size(axes) parts along the first extent, in rank order.
// Reductions add in rank order, so equal layouts give equal bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lathe/core/view.h"

namespace lathe {

// Sets of mesh axes, as bits; axes in rank order data, fsdp, context, expert (row-major).
using AxisSet = uint8_t;
inline constexpr AxisSet kAxisData = 1;
inline constexpr AxisSet kAxisFsdp = 2;
inline constexpr AxisSet kAxisContext = 4;
inline constexpr AxisSet kAxisExpert = 8;
inline constexpr AxisSet kAxisAll = 15;

struct MeshShape {
  int data = 1;
  int fsdp = 1;
  int context = 1;
  int expert = 1;
  [[nodiscard]] int size() const { return data * fsdp * context * expert; }
};

enum class Phase : uint8_t { kPrepare, kForward, kRemat, kBackward, kUpdate };
[[nodiscard]] const char* phase_name(Phase phase);

struct Exchange {
  AxisSet axes = kAxisAll;
  Phase phase = Phase::kForward;
  const char* tensor = "";  // Hugging Face name of a weight, or the activation's name
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual const MeshShape& mesh() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size(AxisSet axes) const = 0;
  [[nodiscard]] virtual int index(AxisSet axes) const = 0;  // of this rank within its group of `axes`

  virtual void all_gather(const Exchange& exchange, ConstView part, View whole) = 0;
  virtual void reduce_scatter(const Exchange& exchange, ConstView whole, View part) = 0;
  virtual void all_reduce(const Exchange& exchange, View data) = 0;
  // Host values: loss sums, denominators, metrics, the gradient norm.
  virtual void all_reduce_sum(const Exchange& exchange, std::span<double> values) = 0;
  virtual void all_reduce_max(const Exchange& exchange, std::span<double> values) = 0;
  virtual void barrier() = 0;
};

[[nodiscard]] std::unique_ptr<Communicator> make_solo_communicator();

}  // namespace lathe
