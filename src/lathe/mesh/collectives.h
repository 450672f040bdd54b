// Collectives as stages of messages: every rank sends every other its part directly, and adds what it receives in rank
// order.
#pragma once

#include <span>
#include <vector>

#include "lathe/mesh/communicator.h"
#include "lathe/mesh/ledger.h"
#include "lathe/mesh/operation.h"

namespace lathe {

// The ranks of a group, in rank order.
struct Group {
  std::vector<int> ranks;  // of the world
  int index = 0;           // of this rank in it
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
};
[[nodiscard]] Group group_of(const MeshShape& mesh, int rank, AxisSet axes);

// Where the part of rank `index` lies in `whole`: runs of elements, in the order in which they follow each other in part.
struct PartRun {
  int64_t in_whole = 0;
  int64_t in_part = 0;
  int64_t elements = 0;
};
[[nodiscard]] std::vector<PartRun> part_runs(int64_t whole_elements, int64_t blocks, int size, int index);

// Elements from other ranks that a reduction needs room for.
[[nodiscard]] int64_t scratch_elements(const Group& group, const ReducePiece& piece);
[[nodiscard]] int64_t scratch_elements(const Group& group, View data);  // all-reduce

// Bugs of the caller are internal errors that name the tensor.
void check_pieces(const Group& group, const Exchange& exchange, std::span<const GatherPiece> pieces);
void check_pieces(const Group& group, const Exchange& exchange, std::span<const ReducePiece> pieces);
void check_all_to_all(const Group& group, const Exchange& exchange, ConstView from, ConstView to);
void check_pieces(const Group& group, const Exchange& exchange, std::span<const SendPiece> sends,
                  std::span<const ReceivePiece> receives);

[[nodiscard]] Stage gather_stage(const Group& group, std::span<const GatherPiece> pieces);
// scratch: one tensor of scratch_elements per piece.
[[nodiscard]] Stage reduce_stage(const Group& group, std::span<const ReducePiece> pieces,
                                 std::span<const Tensor> scratch);
[[nodiscard]] std::vector<Stage> all_reduce_stages(const Group& group, View data, const Tensor& scratch);
[[nodiscard]] Stage all_to_all_stage(const Group& group, ConstView from, View to);
[[nodiscard]] Stage send_recv_stage(const Group& group, std::span<const SendPiece> sends,
                                    std::span<const ReceivePiece> receives);
// parts: room for the values of the other ranks; made here.
[[nodiscard]] Stage host_reduce_stage(const Group& group, std::span<double> values, Combine combine,
                                      std::vector<std::vector<double>>* parts);

// The ledger's entry of an exchange, with count 1 and no times.
[[nodiscard]] LedgerEntry gather_entry(const Group& group, const Exchange& exchange,
                                       std::span<const GatherPiece> pieces);
[[nodiscard]] LedgerEntry reduce_entry(const Group& group, const Exchange& exchange,
                                       std::span<const ReducePiece> pieces);
[[nodiscard]] LedgerEntry all_reduce_entry(const Group& group, const Exchange& exchange, int64_t bytes);
[[nodiscard]] LedgerEntry all_to_all_entry(const Group& group, const Exchange& exchange, ConstView to);
[[nodiscard]] LedgerEntry send_recv_entry(const Group& group, const Exchange& exchange,
                                          std::span<const SendPiece> sends,
                                          std::span<const ReceivePiece> receives);

// A group of one rank: its part is the whole.
void copy_alone(const Stage& stage);

}  // namespace lathe
