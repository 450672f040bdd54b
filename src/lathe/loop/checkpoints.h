// The folder checkpoints/ of a run: step_000012/ between two steps, step_000012-mb0003/ between two micro-batches of step 13.
// A checkpoint is complete when it holds COMPLETE; anything else counts for nothing and is written over. A kill at any
// moment leaves every complete checkpoint whole: they are written beside (.tmp_NAME), renamed, and renamed away
// (.trash_NAME) before they are deleted.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lathe {

struct CheckpointName {
  int64_t step = 0;           // finished
  int64_t micro_batches = 0;  // of the next step
  // NOLINTNEXTLINE(modernize-use-nullptr): the check stumbles over the operator
  [[nodiscard]] auto operator<=>(const CheckpointName&) const = default;
  [[nodiscard]] std::string text() const;
};
[[nodiscard]] std::optional<CheckpointName> parse_checkpoint_name(const std::string& folder_name);

class Checkpoints {
 public:
  explicit Checkpoints(std::string folder) : folder_(std::move(folder)) {}

  [[nodiscard]] std::vector<CheckpointName> complete() const;  // ascending; empty when there is no folder
  [[nodiscard]] std::string path_of(const CheckpointName& name) const;
  [[nodiscard]] std::string path_of_latest() const;
  [[nodiscard]] std::string unfinished_path_of(const CheckpointName& name) const;  // while it is written

  // Writes one through `fill(folder)` and returns its path; flushed to disk. `expected_bytes` are asked of the file system
  // first: too little space is a retryable error with both numbers. When it throws, nothing of it stays, and the earlier
  // ones do. Afterwards `latest` names it, of the full ones the `keep` newest stay (0 = all), and mid-step ones before a
  // full one go.
  std::string write(const CheckpointName& name, int64_t keep, uint64_t expected_bytes,
                    const std::function<void(const std::string& folder)>& fill) const;
  void point_latest_at(const CheckpointName& name) const;
  // What killed runs left half-written or half-deleted.
  void remove_leftovers() const;
  // Renames complete ones after `name` to superseded_NAME; returns the new names.
  std::vector<std::string> supersede_after(const CheckpointName& name) const;

 private:
  void remove_old(const CheckpointName& newest, int64_t keep) const;
  void discard(const std::string& name) const;

  std::string folder_;
};

// Retryable error: the file system of `folder` (or of the nearest one above it that is there) has less than `bytes`.
void check_free_space(const std::string& folder, uint64_t bytes);

}  // namespace lathe
