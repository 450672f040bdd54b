#include "lathe/data/trajectory.h"

namespace lathe {

int64_t Trajectory::scored_tokens() const {
  int64_t count = 0;
  for (const uint8_t scored : completion_mask) count += scored != 0 ? 1 : 0;
  return count;
}

}  // namespace lathe
