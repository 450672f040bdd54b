#include "lathe/loop/train.h"

#include <exception>

#include "lathe/core/error.h"
#include "lathe/loop/rank_errors.h"
#include "lathe/loop/trainer.h"

namespace lathe {

int train(const RunConfig& config, const TrainOptions& options, Log& log,
          const std::function<void(const std::string& line)>& print) {
  check_packing_options(packing_options(config));
  check_grpo_config(config.grpo);
  std::exception_ptr agreed;
  {
    Trainer trainer(config, options, log, print);
    try {
      trainer.prepare();
      if (!options.dry_run) return trainer.run();
      trainer.dry_run();
      return 0;
    } catch (const AgreedError&) {
      agreed = std::current_exception();
    }
  }
  // The communicator is closed, as all ranks close theirs.
  std::rethrow_exception(agreed);
}

}  // namespace lathe
