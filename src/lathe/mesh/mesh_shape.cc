#include <algorithm>
#include <array>

#include "lathe/core/error.h"
#include "lathe/mesh/communicator.h"

namespace lathe {
namespace {

struct Axis {
  AxisSet bit;
  int size;
};

std::array<Axis, 4> axes_of(const MeshShape& mesh) {
  return {Axis{kAxisData, mesh.data}, Axis{kAxisFsdp, mesh.fsdp}, Axis{kAxisContext, mesh.context},
          Axis{kAxisExpert, mesh.expert}};
}

}  // namespace

int MeshShape::size(AxisSet axes) const {
  int out = 1;
  for (const Axis& axis : axes_of(*this)) out *= (axes & axis.bit) != 0 ? axis.size : 1;
  return out;
}

int MeshShape::index(int rank, AxisSet axes) const {
  int out = 0;
  int stride = size();
  for (const Axis& axis : axes_of(*this)) {
    stride /= axis.size;
    if ((axes & axis.bit) != 0) out = out * axis.size + rank / stride % axis.size;
  }
  return out;
}

int MeshShape::member(int rank, AxisSet axes, int index) const {
  int inner = size(axes);
  int stride = size();
  int out = 0;
  for (const Axis& axis : axes_of(*this)) {
    stride /= axis.size;
    int coordinate = rank / stride % axis.size;
    if ((axes & axis.bit) != 0) {
      inner /= axis.size;
      coordinate = index / inner % axis.size;
    }
    out += coordinate * stride;
  }
  return out;
}

FlatShard flat_shard(int64_t elements, int size, int index) {
  const int64_t run = (elements + size - 1) / size;
  return {std::min(elements, run * index), std::min(elements, run * (index + 1))};
}

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kPrepare:
      return "prepare";
    case Phase::kForward:
      return "forward";
    case Phase::kRemat:
      return "remat";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

PeerFailure::PeerFailure(int rank, const std::string& reason)
    : Error(ErrorKind::kRetryable, fmt::format("rank {} failed", rank), reason) {}

Request& Request::operator=(Request&& other) noexcept {
  end();
  work_ = std::move(other.work_);
  return *this;
}

Request::~Request() {
  end();
}

void Request::end() noexcept {
  try {
    wait();
  } catch (...) {  // NOLINT: whoever needs the result waits, and hears of it
  }
}

void Request::wait() {
  if (work_ == nullptr) return;
  const std::unique_ptr<Work> work = std::move(work_);
  work->wait();
}

}  // namespace lathe
