#include "lathe/data/rollouts.h"

#include "lathe/core/error.h"
#include "lathe/data/line_reader.h"
#include "lathe/data/rollout_line.h"

namespace lathe {
namespace {

constexpr int64_t kShownBadLines = 5;

void note_bad_line(RolloutFile& file, const Error& error) {
  if (++file.bad_lines <= kShownBadLines)
    file.warnings.push_back(fmt::format("line left out: {}", error.what()));
}

}  // namespace

RolloutFile read_rollouts(const std::string& path, const RolloutOptions& options) {
  RolloutFile file;
  file.path = path;
  LineReader reader(path, options.bytes);
  RolloutLineParser parser(path, options);
  for (std::string line; reader.next(line);) {
    if (options.on_line) options.on_line();
    if (is_blank(line)) continue;
    if (options.keep_text) file.lines.push_back({.text = line, .trajectory = -1});
    try {
      file.trajectories.push_back(parser.parse(line, reader.line_number()));
    } catch (const Error& error) {
      if (!options.skip_bad_lines || error.kind() != ErrorKind::kData) throw;
      note_bad_line(file, error);
      continue;
    }
    if (options.keep_text) file.lines.back().trajectory = static_cast<int64_t>(file.trajectories.size()) - 1;
  }
  if (file.bad_lines > kShownBadLines) {
    file.warnings.push_back(fmt::format("{}: {} bad lines left out altogether", path, file.bad_lines));
  }
  file.warnings.insert(file.warnings.end(), parser.warnings().begin(), parser.warnings().end());
  if (file.trajectories.empty()) {
    data_error(path,
               file.bad_lines == 0 ? std::string("no trajectories, expected one JSON object a line")
                                   : fmt::format("no trajectories: all {} lines are bad; {}", file.bad_lines,
                                                 file.warnings[0]),
               "was the sampler's output written?");
  }
  return file;
}

}  // namespace lathe
