/// A small run to report, and searches in the text of a report.
#pragma once
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "runtime/results/train_result.h"

namespace spillway {

inline constexpr int64_t kMiB = 1 << 20;

/// Returns `bytes` of one category.
inline BytesByCategory bytes_of(Category category, int64_t bytes) {
  BytesByCategory all{};
  all[static_cast<size_t>(category)] = bytes;
  return all;
}

/// Returns a run of three steps that has something for every part of a report.
inline TrainResult small_run() {
  TrainResult r;
  r.shape = {32, 32, 32};
  r.world_size = 2;
  r.metric_name = "Dice";
  r.budget_bytes = 600 * kMiB;
  r.observed = UnlimitedProfile{
      .peak_bytes = 1200 * kMiB, .floor_bytes = 300 * kMiB, .floor_operator = "aten::cat", .step_seconds = 0.2};
  r.floor_bytes = 300 * kMiB;
  r.peak_bytes = 540 * kMiB;
  r.losses = {2, 1.5, 1.25};
  r.step_seconds = {0.5, 0.4, 0.3};
  r.step_kinds = {"plain", "plain", "factor"};
  r.metric = {{0, 0.1}, {3, 0.7}};
  r.weights_sha256 = "0123456789abcdef";
  r.kfac = KfacSummary();
  r.kfac->reason = "it fits";
  r.allreduce = AllreduceSummary{"2", "direct", "one level", kMiB, 0.01};
  r.predicted = Prediction{"plain", 540 * kMiB, 0.31, 0.3};
  r.paging = PagingSummary{
      .kind = "plain",
      .absences = {{"aten::cat", "aten::conv", "aten::conv_backward", Category::activations, 64 * kMiB, 0.2, true}},
      .footprints = {{"aten::conv_backward", 100 * kMiB, 30 * kMiB, 20 * kMiB}},
      .compute_seconds = 0.3,
      .shortest_compute_seconds = 0.3,
      .predicted_seconds = 0.31,
      .exposed_seconds = 0.001,
      .bound_seconds = 0.3,
      .bytes_out = kMiB,
      .bytes_in = kMiB};
  r.recording.step = 2;
  r.recording.seconds = 1;
  r.recording.memory = {{0, bytes_of(Category::weights, 100 * kMiB)},
                        {0.25, bytes_of(Category::activations, 540 * kMiB)},
                        {0.75, bytes_of(Category::gradients, 50 * kMiB)}};
  r.recording.events = {{"aten::conv", "compute", 0, 0.5, 0}, {"page", "copy out", 0.1, 0.2, kMiB}};
  return r;
}

/// Returns the reason why `text` is not well-formed XML, or an empty text when it is.
inline std::string xml_fault(std::string_view text) {
  static const std::regex tag(R"re(<(/?)([A-Za-z][\w]*)((?:\s+[\w:-]+="[^"<]*")*)\s*(/?)>)re");
  static const std::regex entity("&(?:lt|gt|amp|quot|#39);");
  std::vector<std::string> open;
  for (size_t at = text.starts_with("<!DOCTYPE html>") ? 15 : 0; at < text.size(); ++at) {
    const std::string rest(text.substr(at, 4000));
    std::smatch match;
    if (static_cast<unsigned char>(text[at]) < 0x20 && text[at] != '\n') return str("control character at ", at);
    if (text[at] == '&' && !std::regex_search(rest, entity, std::regex_constants::match_continuous))
      return "entity in: " + rest.substr(0, 60);
    if (text[at] != '<') continue;
    const size_t end = text.find('>', at);  // paths are too long for the regular expression
    std::string one(text.substr(at, end - at + 1));
    one = std::regex_replace(one, std::regex(R"re(d="[MLHVZ0-9 .-]*")re"), R"(d="")");
    if (!std::regex_match(one, match, tag)) return "tag: " + one.substr(0, 60);
    if (match[1].length() == 0 && match[4].length() == 0) open.push_back(match[2]);
    if (match[1].length() > 0 && (open.empty() || open.back() != match[2])) return "not open: " + one;
    if (match[1].length() > 0) open.pop_back();
    at = end;
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

/// Returns how often `part` is in `text`, without overlaps.
inline size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

inline bool contains(std::string_view text, std::string_view part) {
  return count(text, part) > 0;
}

}  // namespace spillway
