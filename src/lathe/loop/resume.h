// Which checkpoint a run goes on from, and whether it may. Nothing here writes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/log.h"
#include "lathe/loop/checkpoints.h"
#include "lathe/loop/train.h"
#include "lathe/loop/train_state.h"

namespace lathe {

struct ResumePoint {
  std::string path;  // absolute
  CheckpointName name;
  TrainState state;
};

// By run.resume: auto: the newest complete checkpoint of run.dir, if there is one; never: none; a folder: that checkpoint,
// or the newest one of run.dir if that run began from it. Model errors: no complete checkpoint there, or unreadable; config
// error: run.dir holds checkpoints of another run.
[[nodiscard]] std::optional<ResumePoint> find_resume_point(const RunSection& run, Log& log);
// The checkpoint at `path`, as another rank found it.
[[nodiscard]] ResumePoint resume_point_at(const std::string& path, const std::string& branched_from);

// Config error that names every setting that differs and may not.
void check_same_settings(const ResumePoint& point, const std::vector<Setting>& settings);
// Config error: the folder of model.path is not the one that the run began with.
void check_same_base(const ResumePoint& point, const BaseModel& now);
// Data error: a rollout file that was used has another name now, or another size if it is in the middle of its use.
void check_same_files(const ResumePoint& point, const std::vector<std::string>& files);

// The model of a checkpoint; a model error if it is not whole or not of the kind of `base`.
[[nodiscard]] std::unique_ptr<HfFolder> open_checkpoint_model(const ResumePoint& point,
                                                              const LoadedModel& base);

// Runs `read`; model errors that say no remedy of their own get this one: remove the checkpoint.
void with_checkpoint_remedy(const ResumePoint& point, const std::function<void()>& read);

}  // namespace lathe
