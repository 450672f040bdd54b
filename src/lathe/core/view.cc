#include "lathe/core/view.h"

namespace lathe {

std::string Shape::text() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) out += fmt::format("{}{}", i > 0 ? ", " : "", dims_[static_cast<size_t>(i)]);
  return out + "]";
}

}  // namespace lathe
