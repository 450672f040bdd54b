#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace {

// Keeps the keys of the objects that are open. The parser itself lets the last of two equal keys win.
class Checker : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Checker(int max_depth) : max_depth_(static_cast<size_t>(max_depth)) {}
  [[nodiscard]] const std::string& fault() const { return fault_; }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(size_t /*elements*/) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t /*elements*/) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    fault_ = fmt::format("the key \"{}\" appears twice", name);
    return false;
  }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    fault_ = fmt::format("is not JSON (fault at byte {})", position);
    return false;
  }

 private:
  bool open() {
    keys_.emplace_back();
    if (keys_.size() <= max_depth_) return true;
    fault_ = fmt::format("is nested more than {} levels deep", max_depth_);
    return false;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  size_t max_depth_;
  std::vector<std::set<std::string>> keys_;
  std::string fault_;
};

}  // namespace

void check_json(const std::string& where, std::string_view text, int max_depth) {
  Checker checker(max_depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &checker)) {
    model_error(where, checker.fault(), "is the file complete? mend it, or get it again");
  }
}

}  // namespace lathe
