#include "lathe/config/problems.h"

namespace lathe {
namespace {

constexpr size_t kMostReported = 20;

std::string joined(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += '\n';
    text += problem.where.empty() ? problem.what : problem.where + ": " + problem.what;
  }
  return text;
}

}  // namespace

ConfigProblems::ConfigProblems(std::vector<Problem> problems)
    : Error(ErrorKind::kConfig, "", joined(problems), problems.empty() ? "" : problems.front().hint),
      problems_(std::move(problems)) {}

void ProblemList::throw_if_any() const {
  if (problems_.empty()) return;
  std::vector<Problem> reported = problems_;
  if (reported.size() > kMostReported) {
    reported.resize(kMostReported);
    reported.push_back({"", fmt::format("and {} more problems", problems_.size() - kMostReported), ""});
  }
  throw ConfigProblems(std::move(reported));
}

}  // namespace lathe
