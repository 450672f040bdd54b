// stdout: a command's result. A reader that goes away (a closed pipe) is no error; a full disk is.
#pragma once

#include <string>

namespace lathe {

class Output {
 public:
  void text(const std::string& text);  // as it is
  void line(const std::string& text);  // and a line break
  // After the last line: a retryable error if something could not be written.
  void finish();

 private:
  int error_ = 0;  // errno of the first failure
};

}  // namespace lathe
