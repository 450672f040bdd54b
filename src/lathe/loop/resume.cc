#include "lathe/loop/resume.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>

#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace fs = std::filesystem;
namespace {

std::string canonical(const std::string& path) {
  std::error_code ignored;
  const fs::path found = fs::weakly_canonical(path, ignored);
  return found.empty() ? path : found.string();
}

ResumePoint read_point(const Checkpoints& checkpoints, const CheckpointName& name) {
  const std::string path = fs::absolute(checkpoints.path_of(name)).string();
  return {.path = path, .name = name, .state = read_train_state(path)};
}

[[noreturn]] void no_checkpoint(const std::string& path) {
  if (!folder_exists(path)) model_error("run.resume", fmt::format("'{}': no such folder", path));
  const std::vector<CheckpointName> inside =
      Checkpoints((fs::path(path) / "checkpoints").string()).complete();
  model_error("run.resume", fmt::format("'{}' is not a complete checkpoint", path),
              inside.empty() ? "give the folder of a checkpoint, such as RUN/checkpoints/step_000012"
                             : fmt::format("it is a run folder; its newest checkpoint is checkpoints/{}",
                                           inside.back().text()));
}

ResumePoint point_named(const RunSection& run, const Checkpoints& own, Log& log) {
  const std::string named = canonical(run.resume);
  const auto name = parse_checkpoint_name(fs::path(named).filename().string());
  if (!name.has_value() || !file_exists((fs::path(named) / "COMPLETE").string())) no_checkpoint(run.resume);
  const std::vector<CheckpointName> complete = own.complete();
  if (!complete.empty()) {
    // The same command again goes on with the branch that it began.
    ResumePoint newest = read_point(own, complete.back());
    if (newest.state.branched_from == named && canonical(newest.path) != named) {
      log.info("run.resume: this run began from '{}' and is at {} by now", named, newest.name.text());
      return newest;
    }
    if (canonical(own.path_of(*name)) != named) {
      config_error(
          "run.dir",
          fmt::format("'{}' holds checkpoints of a run that did not begin from '{}'", run.dir, named),
          "choose a new run.dir, or leave run.resume at auto to go on with that run");
    }
  }
  ResumePoint point{.path = named, .name = *name, .state = read_train_state(named)};
  point.state.branched_from = named;
  return point;
}

// What may change from one start to the next: the contract of the run folder.
bool may_differ(const std::string& key) {
  static constexpr std::array kKeys =
      std::to_array<std::string_view>({"run.dir", "run.keep", "run.memory_budget", "run.resume",
                                       "run.save_every", "run.steps", "run.threads"});
  return key.starts_with("mesh.") || std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

}  // namespace

std::optional<ResumePoint> find_resume_point(const RunSection& run, Log& log) {
  const Checkpoints own((fs::path(run.dir) / "checkpoints").string());
  if (run.resume == "never") return std::nullopt;
  if (run.resume != "auto") return point_named(run, own, log);
  const std::vector<CheckpointName> complete = own.complete();
  if (complete.empty()) return std::nullopt;
  return read_point(own, complete.back());
}

ResumePoint resume_point_at(const std::string& path, const std::string& branched_from) {
  const auto name = parse_checkpoint_name(fs::path(path).filename().string());
  if (!name.has_value() || !file_exists((fs::path(path) / "COMPLETE").string())) {
    model_error(path, "is no complete checkpoint here, and rank 0 goes on from it",
                "put run.dir on a file system that all ranks share");
  }
  ResumePoint point{.path = path, .name = *name, .state = read_train_state(path)};
  point.state.branched_from = branched_from;
  return point;
}

void check_same_settings(const ResumePoint& point, const std::vector<Setting>& settings) {
  std::map<std::string, std::string> stored = point.state.settings;
  std::string differences;
  const auto add = [&](const std::string& key, const std::string& now, const std::string& then) {
    if (may_differ(key) || now == then) return;
    differences += fmt::format("{}{} is {}, and was {}", differences.empty() ? "" : "; ", key, now, then);
  };
  for (const Setting& setting : settings) {
    const auto found = stored.find(setting.key);
    // A key that the version of then did not have was at what is the default now.
    add(setting.key, as_stored(setting.value), found == stored.end() ? setting.default_value : found->second);
    if (found != stored.end()) stored.erase(found);
  }
  for (const auto& [key, value] : stored) add(key, "no option any more", value);
  if (differences.empty()) return;
  config_error(point.path, "the run cannot go on with another configuration: " + differences,
               "set these keys as they were, or start a new run in another run.dir");
}

void check_same_base(const ResumePoint& point, const BaseModel& now) {
  const BaseModel& then = point.state.base;
  std::string what;
  if (now.tensors != then.tensors) {
    what = "its tensors have other names, shapes or types";
  } else if (now.config != then.config) {
    what = "its config.json is another one";
  } else if (now.weights != then.weights) {
    what = "its weights are other ones";
  }
  if (what.empty()) return;
  config_error("model.path",
               fmt::format("is not the model that the run of '{}' began with: {}", point.path, what),
               "put that model back, or start a new run in another run.dir");
}

void check_same_files(const ResumePoint& point, const std::vector<std::string>& files) {
  const std::vector<std::string>& then = point.state.files;
  for (size_t i = 0; i < then.size(); ++i) {
    const std::string now = i < files.size() ? as_stored(files[i]) : "not there";
    if (now == then[i]) continue;
    data_error("data.rollouts",
               fmt::format("file {} of the run was '{}' and is {} now", i + 1, then[i],
                           i < files.size() ? "'" + now + "'" : now),
               "files that were used keep their names and their places; new ones go to the end");
  }
  const auto current = static_cast<size_t>(point.state.position.batch.file);
  if (current >= then.size() || point.state.file_bytes == 0) return;
  std::error_code code;
  const auto bytes = fs::file_size(files[current], code);
  if (!code && bytes != point.state.file_bytes) {
    data_error(then[current],
               fmt::format("has {} bytes and had {} when the run left off in the middle of it", bytes,
                           point.state.file_bytes),
               "put the file back that the run began with");
  }
}

void with_checkpoint_remedy(const ResumePoint& point, const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kModel) throw;
    throw Error(e.kind(), "", e.what(),
                fmt::format("this checkpoint cannot be used: remove the folder '{}' to go on from the one "
                            "before it",
                            point.path));
  }
}

std::unique_ptr<HfFolder> open_checkpoint_model(const ResumePoint& point, const LoadedModel& base) {
  std::unique_ptr<HfFolder> folder;
  with_checkpoint_remedy(point, [&] {
    folder = std::make_unique<HfFolder>(point.path);
    for (const auto& [name, shape] : base.layout.hf_tensors) {
      const TensorInfo& now = folder->info(name);
      const TensorInfo& then = base.folder->info(name);
      if (now.dtype == then.dtype && now.shape == then.shape) continue;
      model_error((fs::path(point.path) / folder->file_of(name)).string(),
                  fmt::format("tensor {} is {} {}; {} {} is needed", name, now.dtype, shape_text(now.shape),
                              then.dtype, shape_text(then.shape)));
    }
  });
  return folder;
}

}  // namespace lathe
