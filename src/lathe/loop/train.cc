#include "lathe/loop/train.h"

#include "lathe/core/error.h"
#include "lathe/loop/trainer.h"

namespace lathe {

int train(const RunConfig& config, const TrainOptions& options, Log& log,
          const std::function<void(const std::string& line)>& print) {
  check_packing_options(packing_options(config));
  check_grpo_config(config.grpo);
  Trainer trainer(config, options, log, print);
  if (options.dry_run) {
    trainer.dry_run();
    return 0;
  }
  return trainer.run();
}

}  // namespace lathe
