#include "lathe/mesh/collectives.h"

#include <cstring>

#include "lathe/core/error.h"

namespace lathe {
namespace {

void check_reduced(const Exchange& exchange, DType dtype) {
  LATHE_CHECK(dtype == DType::kF32 || dtype == DType::kF64, "{}: sums over ranks are of f32 or f64, not {}",
              exchange.tensor, dtype_name(dtype));
}

void check_part(const Group& group, const Exchange& exchange, ConstView whole, ConstView part,
                int64_t blocks) {
  LATHE_CHECK(whole.dtype == part.dtype, "{}: whole of {}, part of {}", exchange.tensor,
              dtype_name(whole.dtype), dtype_name(part.dtype));
  LATHE_CHECK(blocks >= 1 && (blocks == 1 || whole.size() % (blocks * group.size()) == 0),
              "{}: {} elements in {} blocks of {} ranks", exchange.tensor, whole.size(), blocks,
              group.size());
  int64_t elements = 0;
  for (const PartRun& run : part_runs(whole.size(), blocks, group.size(), group.index))
    elements += run.elements;
  LATHE_CHECK(elements == part.size(), "{}: a part of {} elements, not {}, of {} on {} ranks",
              exchange.tensor, part.size(), elements, whole.size(), group.size());
}

void add_copy(Stage* stage, const std::byte* from, std::byte* to, int64_t bytes) {
  if (bytes > 0 && from != to) stage->copies.push_back({from, to, bytes});
}

LedgerEntry entry_of(const Exchange& exchange, CollectiveKind kind, int64_t result_bytes,
                     int64_t wire_bytes) {
  return {.phase = exchange.phase,
          .tensor = exchange.tensor,
          .kind = kind,
          .axes = exchange.axes,
          .count = 1,
          .result_bytes = result_bytes,
          .wire_bytes = wire_bytes};
}

int64_t ring_bytes(const Group& group, int64_t bytes) {
  return bytes * (group.size() - 1) / group.size();
}

}  // namespace

Group group_of(const MeshShape& mesh, int rank, AxisSet axes) {
  Group group;
  group.index = mesh.index(rank, axes);
  const int size = mesh.size(axes);
  for (int i = 0; i < size; ++i) group.ranks.push_back(mesh.member(rank, axes, i));
  return group;
}

std::vector<PartRun> part_runs(int64_t whole_elements, int64_t blocks, int size, int index) {
  if (blocks == 1) {
    const FlatShard shard = flat_shard(whole_elements, size, index);
    return {{shard.begin, 0, shard.size()}};
  }
  std::vector<PartRun> runs;
  const int64_t width = whole_elements / (blocks * size);
  for (int64_t b = 0; b < blocks; ++b) runs.push_back({(b * size + index) * width, b * width, width});
  return runs;
}

int64_t scratch_elements(const Group& group, const ReducePiece& piece) {
  return piece.part.size() * (group.size() - 1);
}

int64_t scratch_elements(const Group& group, View data) {
  return flat_shard(data.size(), group.size(), group.index).size() * (group.size() - 1);
}

void check_pieces(const Group& group, const Exchange& exchange, std::span<const GatherPiece> pieces) {
  for (const GatherPiece& piece : pieces) check_part(group, exchange, piece.whole, piece.part, piece.blocks);
}

void check_pieces(const Group& group, const Exchange& exchange, std::span<const ReducePiece> pieces) {
  for (const ReducePiece& piece : pieces) {
    check_part(group, exchange, piece.whole, piece.part, piece.blocks);
    check_reduced(exchange, piece.whole.dtype);
  }
}

void check_all_to_all(const Group& group, const Exchange& exchange, ConstView from, ConstView to) {
  LATHE_CHECK(from.dtype == to.dtype && from.size() == to.size() && from.size() % group.size() == 0,
              "{}: from {} {} to {} {} on {} ranks", exchange.tensor, from.size(), dtype_name(from.dtype),
              to.size(), dtype_name(to.dtype), group.size());
}

void check_pieces(const Group& group, const Exchange& exchange, std::span<const SendPiece> sends,
                  std::span<const ReceivePiece> receives) {
  int64_t own = 0;
  const auto check_peer = [&](int peer) {
    LATHE_CHECK(peer >= 0 && peer < group.size(), "{}: peer {} of {}", exchange.tensor, peer, group.size());
  };
  for (const SendPiece& piece : sends) {
    check_peer(piece.peer);
    own += piece.peer == group.index ? piece.from.bytes() : 0;
  }
  for (const ReceivePiece& piece : receives) {
    check_peer(piece.peer);
    own -= piece.peer == group.index ? piece.to.bytes() : 0;
  }
  LATHE_CHECK(own == 0, "{}: {} bytes more sent than received within a rank", exchange.tensor, own);
}

Stage gather_stage(const Group& group, std::span<const GatherPiece> pieces) {
  Stage stage;
  for (const GatherPiece& piece : pieces) {
    const int64_t size = dtype_size(piece.whole.dtype);
    for (int i = 0; i < group.size(); ++i) {
      const int peer = group.ranks[static_cast<size_t>(i)];
      for (const PartRun& run : part_runs(piece.whole.size(), piece.blocks, group.size(), i)) {
        std::byte* to = piece.whole.data + run.in_whole * size;
        if (i == group.index) {
          add_copy(&stage, piece.part.data + run.in_part * size, to, run.elements * size);
        } else {
          stage.receives.push_back({peer, to, run.elements * size});
        }
      }
      if (i == group.index) continue;
      // What this rank holds lies together, but arrives as runs.
      for (const PartRun& run : part_runs(piece.whole.size(), piece.blocks, group.size(), group.index))
        stage.sends.push_back({peer, piece.part.data + run.in_part * size, run.elements * size});
    }
  }
  return stage;
}

Stage reduce_stage(const Group& group, std::span<const ReducePiece> pieces, std::span<const Tensor> scratch) {
  Stage stage;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const ReducePiece& piece = pieces[p];
    const int64_t size = dtype_size(piece.whole.dtype);
    const std::vector<PartRun> own = part_runs(piece.whole.size(), piece.blocks, group.size(), group.index);
    std::vector<const std::byte*> received(static_cast<size_t>(group.size()), nullptr);
    std::byte* room = scratch[p].view().data;
    for (int i = 0; i < group.size(); ++i) {
      if (i == group.index) continue;
      const int peer = group.ranks[static_cast<size_t>(i)];
      for (const PartRun& run : part_runs(piece.whole.size(), piece.blocks, group.size(), i))
        stage.sends.push_back({peer, piece.whole.data + run.in_whole * size, run.elements * size});
      for (const PartRun& run : own)
        stage.receives.push_back({peer, room + run.in_part * size, run.elements * size});
      received[static_cast<size_t>(i)] = room;
      room += piece.part.bytes();
    }
    for (const PartRun& run : own) {
      RankOrderSum sum{.dtype = piece.whole.dtype,
                       .elements = run.elements,
                       .sources = {},
                       .to = piece.part.data + run.in_part * size,
                       .accumulate = piece.accumulate};
      for (const std::byte* part : received)
        sum.sources.push_back(part == nullptr ? piece.whole.data + run.in_whole * size
                                              : part + run.in_part * size);
      stage.sums.push_back(std::move(sum));
    }
  }
  return stage;
}

std::vector<Stage> all_reduce_stages(const Group& group, View data, const Tensor& scratch) {
  const FlatShard shard = flat_shard(data.size(), group.size(), group.index);
  const View flat = data.reshape({data.size()});
  const View part(flat.data + shard.begin * dtype_size(data.dtype), data.dtype, {shard.size()});
  const ReducePiece reduce{flat, part};
  const GatherPiece gather{part, flat};
  return {reduce_stage(group, {&reduce, 1}, {&scratch, 1}), gather_stage(group, {&gather, 1})};
}

Stage all_to_all_stage(const Group& group, ConstView from, View to) {
  Stage stage;
  const int64_t bytes = from.bytes() / group.size();
  for (int i = 0; i < group.size(); ++i) {
    const int peer = group.ranks[static_cast<size_t>(i)];
    if (i == group.index) {
      add_copy(&stage, from.data + i * bytes, to.data + i * bytes, bytes);
    } else {
      stage.sends.push_back({peer, from.data + i * bytes, bytes});
      stage.receives.push_back({peer, to.data + i * bytes, bytes});
    }
  }
  return stage;
}

Stage send_recv_stage(const Group& group, std::span<const SendPiece> sends,
                      std::span<const ReceivePiece> receives) {
  Stage stage;
  std::vector<ConstView> own;
  for (const SendPiece& piece : sends) {
    if (piece.peer == group.index) {
      own.push_back(piece.from);
    } else {
      stage.sends.push_back(
          {group.ranks[static_cast<size_t>(piece.peer)], piece.from.data, piece.from.bytes()});
    }
  }
  size_t next = 0;
  for (const ReceivePiece& piece : receives) {
    if (piece.peer == group.index) {
      LATHE_CHECK(next < own.size() && own[next].bytes() == piece.to.bytes(),
                  "copy {} within a rank has two sizes", next);
      add_copy(&stage, own[next++].data, piece.to.data, piece.to.bytes());
    } else {
      stage.receives.push_back(
          {group.ranks[static_cast<size_t>(piece.peer)], piece.to.data, piece.to.bytes()});
    }
  }
  return stage;
}

Stage host_reduce_stage(const Group& group, std::span<double> values, Combine combine,
                        std::vector<std::vector<double>>* parts) {
  Stage stage;
  std::byte* own = std::as_writable_bytes(values).data();
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  RankOrderSum sum{.dtype = DType::kF64,
                   .elements = static_cast<int64_t>(values.size()),
                   .sources = {},
                   .to = own,
                   .accumulate = false,
                   .combine = combine};
  parts->assign(static_cast<size_t>(group.size()), std::vector<double>(values.size()));
  for (int i = 0; i < group.size(); ++i) {
    const int peer = group.ranks[static_cast<size_t>(i)];
    std::byte* part =
        i == group.index ? own : std::as_writable_bytes(std::span((*parts)[static_cast<size_t>(i)])).data();
    sum.sources.push_back(part);
    if (i == group.index) continue;
    stage.sends.push_back({peer, own, bytes});
    stage.receives.push_back({peer, part, bytes});
  }
  stage.sums.push_back(std::move(sum));
  return stage;
}

LedgerEntry gather_entry(const Group& group, const Exchange& exchange, std::span<const GatherPiece> pieces) {
  int64_t bytes = 0;
  for (const GatherPiece& piece : pieces) bytes += piece.whole.bytes();
  return entry_of(exchange, CollectiveKind::kAllGather, bytes, ring_bytes(group, bytes));
}

LedgerEntry reduce_entry(const Group& group, const Exchange& exchange, std::span<const ReducePiece> pieces) {
  int64_t bytes = 0;
  for (const ReducePiece& piece : pieces) bytes += piece.whole.bytes();
  return entry_of(exchange, CollectiveKind::kReduceScatter, bytes, ring_bytes(group, bytes));
}

LedgerEntry all_reduce_entry(const Group& group, const Exchange& exchange, int64_t bytes) {
  return entry_of(exchange, CollectiveKind::kAllReduce, bytes, ring_bytes(group, 2 * bytes));
}

LedgerEntry all_to_all_entry(const Group& group, const Exchange& exchange, ConstView to) {
  return entry_of(exchange, CollectiveKind::kAllToAll, to.bytes(), ring_bytes(group, to.bytes()));
}

LedgerEntry send_recv_entry(const Group& group, const Exchange& exchange, std::span<const SendPiece> sends,
                            std::span<const ReceivePiece> receives) {
  int64_t received = 0;
  int64_t sent = 0;
  for (const ReceivePiece& piece : receives) received += piece.peer == group.index ? 0 : piece.to.bytes();
  for (const SendPiece& piece : sends) sent += piece.peer == group.index ? 0 : piece.from.bytes();
  return entry_of(exchange, CollectiveKind::kSendRecv, received, sent);
}

void copy_alone(const Stage& stage) {
  for (const LocalCopy& copy : stage.copies) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  for (const RankOrderSum& sum : stage.sums) {
    if (sum.accumulate || sum.to != sum.sources.front()) run_sum(sum);
  }
}

}  // namespace lathe
