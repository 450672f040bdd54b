#include "lathe/data/rollout_line.h"

#include "lathe/core/error.h"
#include "lathe/data/json_view.h"
#include "lathe/data/rollout_fields.h"

namespace lathe {
namespace {

constexpr size_t kWarnings = 50;

}  // namespace

RolloutLineParser::RolloutLineParser(std::string path, const RolloutOptions& options)
    : path_(std::move(path)), options_(options) {}

void RolloutLineParser::warn_once(const std::string& about, const std::string& message) {
  if (warnings_.size() < kWarnings && warned_.insert(about).second) warnings_.push_back(message);
}

Trajectory RolloutLineParser::parse(std::string_view text, int64_t line) {
  const std::string where = fmt::format("{}:{}", path_, line);
  JsonDocument document;
  if (const auto fault = document.parse(text)) {
    data_error(
        where,
        fmt::format("not JSON at byte {}: {}, expected one object a line", fault->column, fault->reason),
        "is the line cut off, or the file still being written?");
  }
  const JsonView root = document.root();
  if (root.kind() != JsonKind::kObject) {
    data_error(where, fmt::format("{}, expected one object a line", root.text()),
               "write JSON Lines, not one JSON array");
  }
  const auto note = [this](const std::string& about, const std::string& warning) {
    warn_once(about, warning);
  };
  Trajectory t = RolloutFields(root, where, options_, note).read();
  t.line = line;
  if (t.group.empty()) set_default_group(t, line);
  return t;
}

void RolloutLineParser::set_default_group(Trajectory& t, int64_t line) {
  if (previous_line_ < 0 || t.prompt_ids != previous_prompt_) ++prompt_group_;
  previous_prompt_ = t.prompt_ids;
  previous_line_ = line;
  t.group = fmt::format("p:{}", prompt_group_);
}

}  // namespace lathe
