#include "lathe/loop/batch_source.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lathe/core/error.h"

namespace lathe {

std::vector<std::vector<Trajectory>> split_by_groups(std::vector<Trajectory> trajectories, int64_t count) {
  std::vector<std::vector<Trajectory>> batches;
  if (count <= 0) {
    batches.push_back(std::move(trajectories));
    return batches;
  }
  std::vector<std::vector<size_t>> groups;
  std::map<std::string, size_t> number;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const auto [found, added] = number.emplace(trajectories[i].group, groups.size());
    if (added) groups.emplace_back();
    groups[found->second].push_back(i);
  }
  for (const std::vector<size_t>& group : groups) {
    if (batches.empty() || batches.back().size() + group.size() > static_cast<size_t>(count))
      batches.emplace_back();
    for (const size_t i : group) batches.back().push_back(std::move(trajectories[i]));
  }
  return batches;
}

BatchSource::BatchSource(const std::string& pattern, int64_t trajectories_per_step,
                         const RolloutOptions& options, double wait_s, Log& log)
    : trajectories_per_step_(trajectories_per_step), options_(options), log_(log) {
  if (wait_s > 0) {
    growing_.emplace(pattern, wait_s, log);
  } else {
    files_ = rollout_files(pattern);
  }
}

void BatchSource::set_used(const std::vector<std::string>& files) {
  if (growing_) growing_->set_used(files);
}

void BatchSource::read_file() {
  if (next_file_ == files().size()) {
    next_file_ = 0;
    ++epoch_;
    log_.info("all {} rollout files are used: epoch {} begins", files_.size(), epoch_ + 1);
  }
  const std::string path = files()[next_file_++];
  const Activity reading = log_.activity("reading " + path, 0, "lines");
  options_.on_line = [&reading] { reading.advance(); };
  RolloutFile file = read_rollouts(path, options_);
  options_.on_line = nullptr;
  for (const std::string& warning : file.warnings) {
    if (warned_.insert(warning).second) log_.warning("{}", warning);
  }
  BatchPosition position{.epoch = epoch_, .file = static_cast<int64_t>(next_file_) - 1, .batch = 0};
  for (auto& trajectories : split_by_groups(std::move(file.trajectories), trajectories_per_step_)) {
    pending_.push_back({.file = file.path,
                        .trajectories = std::move(trajectories),
                        .bad_lines = std::exchange(file.bad_lines, 0),
                        .position = position});
    ++position.batch;
  }
  std::reverse(pending_.begin(), pending_.end());
}

std::optional<StepBatch> BatchSource::next(const StopCheck& stop) {
  if (pending_.empty()) {
    if (growing_ && !growing_->wait(next_file_, stop, on_wait_)) return std::nullopt;
    read_file();
  }
  StepBatch batch = std::move(pending_.back());
  pending_.pop_back();
  if (growing_) batch.waited_s = growing_->take_waited();
  return batch;
}

BatchPosition BatchSource::position() const {
  if (!pending_.empty()) return pending_.back().position;
  return {.epoch = epoch_, .file = static_cast<int64_t>(next_file_), .batch = 0};
}

void BatchSource::seek(const BatchPosition& position) {
  pending_.clear();
  epoch_ = position.epoch;
  next_file_ = std::min(static_cast<size_t>(position.file), files().size());
  if (position.batch == 0) return;
  if (next_file_ < files().size()) read_file();
  if (static_cast<int64_t>(pending_.size()) <= position.batch) {
    const std::string& file = files()[std::min(next_file_, files().size()) - 1];
    data_error(file,
               fmt::format("the run goes on with batch {} of this file, which has {}", position.batch + 1,
                           pending_.size()),
               "put the file back that the run began with");
  }
  pending_.resize(pending_.size() - static_cast<size_t>(position.batch));
}

}  // namespace lathe
