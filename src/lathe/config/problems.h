// Faults of a configuration, collected so that one run reports them all.
#pragma once

#include <string>
#include <vector>

#include "lathe/core/error.h"

namespace lathe {

struct Problem {
  std::string where;  // run.yaml:14, --set data.row_length=x, or an option
  std::string what;
  std::string hint;  // may be ""
};

// Several faults in one error; what() is all of them, a line each.
class ConfigProblems : public Error {
 public:
  explicit ConfigProblems(std::vector<Problem> problems);
  [[nodiscard]] const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

class ProblemList {
 public:
  void add(const std::string& where, const std::string& what, const std::string& hint = "") {
    problems_.push_back({where, what, hint});
  }
  // Runs a check that throws; its error joins the list.
  template <typename Check>
  void collect(const std::string& where, const Check& check) {
    try {
      check();
    } catch (const Error& e) {
      add(where, e.what(), e.hint());
    }
  }
  [[nodiscard]] bool empty() const { return problems_.empty(); }
  void throw_if_any() const;  // a ConfigProblems of at most 20

 private:
  std::vector<Problem> problems_;
};

}  // namespace lathe
