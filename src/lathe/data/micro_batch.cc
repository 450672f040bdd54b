#include "lathe/data/micro_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lathe/core/error.h"

namespace lathe {
namespace {

using Field = std::vector<double> Trajectory::*;

// Lengths of rows that are cut: whole blocks of attention, and of the gated delta rule with its usual chunk.
constexpr int64_t kLengthMultiple = 64;

class Builder {
 public:
  Builder(const PackedMicroBatch& packed, std::span<const Trajectory> trajectories,
          std::span<const std::vector<double>> advantages, int64_t row_length,
          const MicroBatchOptions& options)
      : packed_(packed),
        trajectories_(trajectories),
        advantages_(advantages),
        row_length_(row_length),
        options_(options),
        carries_old_(carried(&Trajectory::old_logprobs)),
        carries_ref_(carried(&Trajectory::ref_logprobs)),
        carries_rollout_(carried(&Trajectory::rollout_logprobs)) {}

  MicroBatch build() {
    cut_padding();
    out_.row_length = row_length_;
    const auto tokens = static_cast<size_t>(out_.tokens());
    out_.ids.assign(tokens, 0);
    out_.segment_ids.assign(tokens, 0);
    out_.positions.assign(tokens, 0);
    if (replays_routing()) {
      out_.forced_experts.assign(static_cast<size_t>(options_.moe_layers),
                                 std::vector<int32_t>(tokens * static_cast<size_t>(options_.top_k), -1));
    }
    const int64_t first = options_.share.index * out_.rows;
    const auto end = static_cast<int64_t>(packed_.rows.size());
    for (int64_t row = first; row < std::min(first + out_.rows, end); ++row) {
      add_row(packed_.rows[static_cast<size_t>(row)], (row - first) * row_length_);
    }
    count_all(first);
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool carried(Field field) const {
    bool any = false;
    for (const Trajectory& t : trajectories_) {
      if (!t.trains()) continue;
      if ((t.*field).empty()) return false;
      any = true;
    }
    return any;
  }

  void add_row(const PackedRow& row, int64_t start) {
    int32_t segment_id = 0;
    int64_t end = 0;
    for (const PackedSegment& segment : row.segments) {
      const Trajectory& t = trajectories_[static_cast<size_t>(segment.item)];
      LATHE_CHECK(segment.start >= end && segment.start + t.tokens() <= row_length_, "{}", segment.start);
      end = segment.start + t.tokens();
      add_segment(t, segment.item, start + segment.start, ++segment_id);
    }
  }

  void count_all(int64_t first) {
    for (size_t row = 0; row < packed_.rows.size(); ++row) {
      for (const PackedSegment& segment : packed_.rows[row].segments) {
        const Trajectory& t = trajectories_[static_cast<size_t>(segment.item)];
        int64_t scored = 0;
        for (size_t j = 0; j < t.completion_ids.size(); ++j) scored += is_scored(t, j) ? 1 : 0;
        out_.all_real_tokens += t.tokens();
        out_.all_scored += scored;
        if (static_cast<int64_t>(row) < first) out_.first_scored += scored;
      }
    }
  }

  // Rows without tokens at the end of the micro-batch, and what is padding at the end of every row, are left out.
  void cut_padding() {
    int64_t used = 1;
    out_.all_rows = 1;
    for (size_t row = 0; row < packed_.rows.size(); ++row) {
      if (packed_.rows[row].segments.empty()) continue;
      out_.all_rows = static_cast<int64_t>(row) + 1;
      const PackedSegment& last = packed_.rows[row].segments.back();
      used = std::max(used, last.start + trajectories_[static_cast<size_t>(last.item)].tokens());
    }
    LATHE_CHECK(used <= row_length_, "{} tokens in rows of {}", used, row_length_);
    const auto round_up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
    row_length_ = std::min(row_length_, round_up(used, kLengthMultiple));
    row_length_ = round_up(row_length_, options_.share.length_multiple);
    out_.all_rows = round_up(out_.all_rows, options_.share.count);
    out_.rows = out_.all_rows / options_.share.count;
  }

  // Decided over the whole step, so that it does not vary between its micro-batches.
  [[nodiscard]] bool replays_routing() const {
    return options_.use_forced_experts && options_.moe_layers > 0 &&
           std::any_of(trajectories_.begin(), trajectories_.end(),
                       [](const Trajectory& t) { return t.routed_experts.has_value(); });
  }

  void add_segment(const Trajectory& t, int64_t item, int64_t start, int32_t segment_id) {
    const int64_t prompt = static_cast<int64_t>(t.prompt_ids.size());
    LATHE_CHECK(prompt >= 1, "line {}: a segment's first token has no hidden state before it", t.line);
    std::copy(t.prompt_ids.begin(), t.prompt_ids.end(), out_.ids.begin() + start);
    std::copy(t.completion_ids.begin(), t.completion_ids.end(), out_.ids.begin() + start + prompt);
    for (int64_t k = 0; k < t.tokens(); ++k) {
      out_.segment_ids[static_cast<size_t>(start + k)] = segment_id;
      out_.positions[static_cast<size_t>(start + k)] = static_cast<int32_t>(k);
    }
    out_.real_tokens += t.tokens();
    const auto sequence = static_cast<int32_t>(out_.item.size());
    out_.item.push_back(item);
    out_.overlong.push_back(t.status == TrajectoryStatus::kTruncated ? 1 : 0);
    for (size_t j = 0; j < t.completion_ids.size(); ++j) {
      if (is_scored(t, j)) add_scored(t, item, start + prompt, sequence, j);
    }
    if (!options_.use_forced_experts || !t.routed_experts) return;
    check_routed_experts({&t, 1}, options_);
    if (!out_.forced_experts.empty()) add_routing(*t.routed_experts, start);
  }

  [[nodiscard]] bool is_scored(const Trajectory& t, size_t j) const {
    if (!advantages_.empty() && !t.trains()) return false;
    return options_.score_all_completion_tokens || t.completion_mask[j] != 0;
  }

  void add_scored(const Trajectory& t, int64_t item, int64_t completion_start, int32_t sequence, size_t j) {
    out_.hidden_index.push_back(static_cast<int32_t>(completion_start + static_cast<int64_t>(j) - 1));
    out_.temperature.push_back(static_cast<float>(t.temperature));
    out_.sequence.push_back(sequence);
    out_.completion_position.push_back(static_cast<int32_t>(j));
    if (!advantages_.empty()) {
      const auto& advantage = advantages_[static_cast<size_t>(item)];
      LATHE_CHECK(advantage.size() == 1 || advantage.size() == t.completion_ids.size(), "line {}", t.line);
      out_.advantage.push_back(advantage.size() == 1 ? advantage[0] : advantage[j]);
    }
    if (carries_old_) out_.old_logprobs.push_back(value(t.old_logprobs, j));
    if (carries_ref_) out_.ref_logprobs.push_back(value(t.ref_logprobs, j));
    if (carries_rollout_) out_.rollout_logprobs.push_back(value(t.rollout_logprobs, j));
  }

  static double value(const std::vector<double>& field, size_t j) {
    return field.empty() ? std::numeric_limits<double>::quiet_NaN() : field[j];
  }

  // Recorded [tokens, layers, top_k] becomes [layers][tokens, top_k]; a sampler that stops before a
  // sequence's last token leaves it at -1.
  void add_routing(const RoutedExperts& routed, int64_t start) {
    const auto top_k = static_cast<size_t>(routed.top_k);
    const int16_t* from = routed.data.data();
    for (int64_t token = 0; token < routed.tokens; ++token) {
      for (auto& layer : out_.forced_experts) {
        std::copy(from, from + top_k, layer.begin() + (start + token) * routed.top_k);
        from += top_k;
      }
    }
  }

  const PackedMicroBatch& packed_;
  std::span<const Trajectory> trajectories_;
  std::span<const std::vector<double>> advantages_;
  int64_t row_length_;
  const MicroBatchOptions& options_;
  bool carries_old_;
  bool carries_ref_;
  bool carries_rollout_;
  MicroBatch out_;
};

// No expert twice for one token and layer.
void check_choices(const RoutedExperts& routed, const std::string& where, const char* hint) {
  std::vector<int16_t> choices(static_cast<size_t>(routed.top_k));
  for (auto row = routed.data.begin(); row != routed.data.end(); row += routed.top_k) {
    std::copy(row, row + routed.top_k, choices.begin());
    std::sort(choices.begin(), choices.end());
    const auto same = std::adjacent_find(choices.begin(), choices.end(),
                                         [](int16_t a, int16_t b) { return a >= 0 && a == b; });
    if (same == choices.end()) continue;
    const int64_t index = (row - routed.data.begin()) / routed.top_k;
    data_error(where,
               fmt::format("routed_experts[{}][{}]: expert {} twice, expected distinct experts",
                           index / routed.layers, index % routed.layers, *same),
               hint);
  }
}

void check_routing(const Trajectory& t, const MicroBatchOptions& options) {
  const RoutedExperts& routed = *t.routed_experts;
  const std::string where = fmt::format("{}:{}", options.file, t.line);
  const char* hint = "record the routing with this model, or set moe.forced_routing: off";
  if (routed.layers != options.moe_layers || routed.top_k != options.top_k) {
    data_error(
        where,
        fmt::format("routed_experts.shape: {} layers of {} choices, expected the model's {} layers of {}",
                    routed.layers, routed.top_k, options.moe_layers, options.top_k),
        hint);
  }
  const auto found = std::find_if(routed.data.begin(), routed.data.end(),
                                  [&](int16_t expert) { return expert < -1 || expert >= options.experts; });
  const int64_t per_token = routed.layers * routed.top_k;
  if (found == routed.data.end()) {
    check_choices(routed, where, hint);
    return;
  }
  const int64_t offset = found - routed.data.begin();
  data_error(
      where,
      fmt::format("routed_experts[{}][{}][{}]: {}, expected -1 or an expert in [0, {})", offset / per_token,
                  offset % per_token / routed.top_k, offset % routed.top_k, *found, options.experts),
      hint);
}

}  // namespace

void check_routed_experts(std::span<const Trajectory> trajectories, const MicroBatchOptions& options) {
  if (!options.use_forced_experts) return;
  for (const Trajectory& t : trajectories) {
    if (t.routed_experts) check_routing(t, options);
  }
}

MicroBatch build_micro_batch(const PackedMicroBatch& packed, std::span<const Trajectory> trajectories,
                             std::span<const std::vector<double>> advantages, int64_t row_length,
                             const MicroBatchOptions& options) {
  LATHE_CHECK(advantages.empty() || advantages.size() == trajectories.size());
  return Builder(packed, trajectories, advantages, row_length, options).build();
}

}  // namespace lathe
