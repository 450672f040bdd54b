#include "lathe/loop/batch_source.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/loop/agreement.h"

namespace lathe {
namespace {

// -1: not to be told; reading it says why.
int64_t bytes_on_disk(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? -1 : static_cast<int64_t>(bytes);
}

}  // namespace

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
                         const RolloutOptions& options, double wait_s, Communicator& communicator, Log& log)
    : communicator_(communicator),
      trajectories_per_step_(trajectories_per_step),
      options_(options),
      grows_(wait_s > 0),
      log_(log) {
  if (!grows_) {
    files_ = leaders_texts(communicator, leads() ? rollout_files(pattern) : std::vector<std::string>{});
  } else if (leads()) {
    growing_.emplace(pattern, wait_s, log);
  }
}

void BatchSource::set_used(const std::vector<std::string>& files) {
  if (!grows_) return;
  if (growing_) return growing_->set_used(files);
  files_ = files;
}

bool BatchSource::wait(const StopCheck& stop) {
  if (!growing_ || !pending_.empty() || begun_.has_value()) return true;
  return growing_->wait(next_file_, stop, on_wait_);
}

// The leading rank's choice.
BatchSource::Choice BatchSource::next_file() const {
  if (begun_.has_value()) return *begun_;
  if (growing_) return {.path = growing_->files()[next_file_], .bytes = growing_->bytes()};
  const std::string& path = files_[next_file_ % files_.size()];
  return {.path = path, .bytes = bytes_on_disk(path)};
}

BatchSource::Choice BatchSource::told_by_leader() const {
  Choice choice;
  if (leads()) choice = next_file();
  const std::vector<std::string> told =
      leaders_texts(communicator_, {choice.path, std::to_string(choice.bytes)});
  return {.path = told[0], .bytes = std::stoll(told[1])};
}

void BatchSource::read_file() {
  const Choice choice = told_by_leader();
  begun_.reset();
  if (grows_ && next_file_ == files().size()) files_.push_back(choice.path);
  if (next_file_ == files().size()) {
    next_file_ = 0;
    ++epoch_;
    log_.info("all {} rollout files are used: epoch {} begins", files_.size(), epoch_ + 1);
  }
  ++next_file_;
  const Activity reading = log_.activity("reading " + choice.path, 0, "lines");
  options_.bytes = choice.bytes;
  options_.on_line = [&reading] { reading.advance(); };
  RolloutFile file = read_rollouts(choice.path, options_);
  options_.on_line = nullptr;
  for (const std::string& warning : file.warnings) {
    if (warned_.insert(warning).second) log_.warning("{}", warning);
  }
  BatchPosition position{.epoch = epoch_, .file = static_cast<int64_t>(next_file_) - 1, .batch = 0};
  std::vector<std::vector<Trajectory>> batches =
      split_by_groups(std::move(file.trajectories), trajectories_per_step_);
  for (auto& trajectories : batches) {
    pending_.push_back({.file = file.path,
                        .trajectories = std::move(trajectories),
                        .bad_lines = std::exchange(file.bad_lines, 0),
                        .position = position,
                        .batches = static_cast<int64_t>(batches.size())});
    ++position.batch;
  }
  std::reverse(pending_.begin(), pending_.end());
}

StepBatch BatchSource::next() {
  if (pending_.empty()) read_file();
  StepBatch batch = std::move(pending_.back());
  pending_.pop_back();
  if (growing_) batch.waited_s = growing_->take_waited();
  return batch;
}

BatchPosition BatchSource::position() const {
  if (!pending_.empty()) return pending_.back().position;
  return {.epoch = epoch_, .file = static_cast<int64_t>(next_file_), .batch = 0};
}

void BatchSource::seek(const BatchPosition& position, bool begun, int64_t bytes) {
  pending_.clear();
  epoch_ = position.epoch;
  next_file_ = std::min(static_cast<size_t>(position.file), files().size());
  if (begun && next_file_ < files().size()) {
    const std::string& path = files()[next_file_];
    begun_ = Choice{.path = path, .bytes = bytes > 0 ? bytes : bytes_on_disk(path)};
  }
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
