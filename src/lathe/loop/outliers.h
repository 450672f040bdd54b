// Values of a step that do not go with those of the steps before it. For each watched metric (policy/loss,
// optim/grad_norm, mismatch/kl) the last 32 finite values are kept; a value is an outlier if at least 8 are there and it is
// more than 6 standard deviations (n - 1) from their mean: to either side for the loss, above it for the others. The
// deviation counts as at least 1 % of the mean and 1e-6, so that rounding around a constant is none. An outlier joins the
// window like any value: a new level is reported when it begins, not for ever. What is not finite never joins.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lathe {

class OutlierWatch {
 public:
  // One line per outlier among the metrics of a step; names that are not watched are passed over.
  [[nodiscard]] std::vector<std::string> check(int64_t step,
                                               const std::vector<std::pair<std::string, double>>& metrics);

  // The windows by metric, oldest value first, for a checkpoint; a watch that takes them goes on with the same lines.
  [[nodiscard]] std::map<std::string, std::vector<double>> windows() const;
  void restore(const std::map<std::string, std::vector<double>>& windows);

 private:
  std::map<std::string, std::deque<double>> windows_;
};

}  // namespace lathe
