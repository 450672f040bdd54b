#include "lathe/core/view.h"

namespace lathe {

std::string Shape::text() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) out += fmt::format("{}{}", i > 0 ? ", " : "", dims_[i]);
  return out + "]";
}

void detail::wrong_shape(const char* what, const char* name, const Shape& actual, const Shape& expected) {
  LATHE_CHECK(false, "{}: {} is {}, expected {}", what, name, actual.text(), expected.text());
}

}  // namespace lathe
