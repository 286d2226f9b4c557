#include "runtime/report/tables.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/pictures/operators.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

using Others = std::vector<NamedResult>;

/// Returns the comparison that step times are compared with; null when there is none.
const TrainResult* unlimited(const Others& others) {
  for (const NamedResult& other : others)
    if (other.name == "unlimited") return &other.result;
  return nullptr;
}

double steps_of(const TrainResult& r) {
  return static_cast<double>(std::max<size_t>(1, r.losses.size()));
}
bool has_budget(const TrainResult& r) {
  return r.budget_bytes != kUnlimitedBytes;
}
bool has_steps(const TrainResult& r) {
  return !r.step_seconds.empty();
}

double of_budget(const TrainResult& r, int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(r.budget_bytes);
}

std::string small(const std::string& text) {
  return str(" <small>", text, "</small>");
}
std::string bytes_or_none(int64_t bytes) {
  return bytes > 0 ? format_bytes(bytes) : "";
}

std::string peak_cell(const TrainResult& r) {
  if (r.peak_bytes <= 0) return "";
  std::string cell = format_bytes(r.peak_bytes);
  if (has_budget(r)) cell += small(format_percent(of_budget(r, r.peak_bytes)) + " of the budget");
  return cell;
}

std::string unconstrained_cell(const TrainResult& r) {
  if (!r.observed || r.observed->peak_bytes <= 0) return "";
  std::string cell = format_bytes(r.observed->peak_bytes);
  if (has_budget(r)) cell += small(format_ratio(of_budget(r, r.observed->peak_bytes)) + " the budget");
  return cell;
}

std::string floor_cell(const TrainResult& r) {
  std::string cell = bytes_or_none(r.floor_bytes);
  const bool named = r.observed && !r.observed->floor_operator.empty();
  return cell.empty() || !named ? cell : cell + small(breakable(r.observed->floor_operator));
}

std::string ratio_cell(const TrainResult& r, const TrainResult* base) {
  const double ratio = base ? step_time_ratio(r, *base) : 0;
  return ratio > 0 ? format_ratio(ratio) : "";
}

std::string paged_cell(const TrainResult& r) {
  if (r.losses.empty()) return "";
  auto per_step = [&](int64_t bytes) { return format_bytes(std::llround(static_cast<double>(bytes) / steps_of(r))); };
  return str(per_step(r.bytes_out), " out,<wbr/> ", per_step(r.bytes_in), " in");
}

std::string exposed_cell(const TrainResult& r) {
  if (r.losses.empty()) return "";
  std::string cell = format_seconds(r.exposed_copy_seconds / steps_of(r));
  double all = 0;
  for (double seconds : r.step_seconds) all += seconds;
  if (all > 0 && r.exposed_copy_seconds > 0)
    cell += small(format_percent(r.exposed_copy_seconds / all) + " of the time");
  return cell;
}

std::string change(double start, double end) {
  return str(format_value(start), " →<wbr/> ", format_value(end));
}

std::string optimizer_cell(const TrainResult& r) {
  const OptimizerOptions& o = r.options.optimizer;
  std::string cell = str(name(o.kind), r.kfac ? "<wbr/> + K-FAC" : "", small(str("lr ", format_value(o.lr))));
  if (o.rest) cell += small(str("the rest: ", name(o.rest->kind), ", lr ", format_value(o.rest->lr)));
  return cell;
}

std::string weights_cell(const TrainResult& r, const TrainResult& main) {
  if (r.weights_sha256.empty()) return "";
  std::string cell = str("<code>", escape(r.weights_sha256.substr(0, 12)), "</code>");
  if (&r != &main && r.weights_sha256 == main.weights_sha256) cell += small("the same bits");
  return cell;
}

struct Row {
  std::string label;
  std::function<std::string(const TrainResult&)> cell;  ///< HTML, empty when there is no number
};

std::vector<Row> summary_rows(const TrainResult& main, const Others& others) {
  const TrainResult* base = unlimited(others);
  const std::string metric = main.metric_name.empty() ? "metric" : main.metric_name;
  return {
      {"optimizer", optimizer_cell},
      {"budget", [](const TrainResult& r) { return has_budget(r) ? format_bytes(r.budget_bytes) : "none"; }},
      {"peak", peak_cell},
      {"peak, predicted",
       [](const TrainResult& r) { return r.predicted ? format_bytes(r.predicted->peak_bytes) : ""; }},
      {"unconstrained peak", unconstrained_cell},
      {"floor: the smallest budget", floor_cell},
      {"peak on the host", [](const TrainResult& r) { return bytes_or_none(r.host_peak_bytes); }},
      {"peak on disk", [](const TrainResult& r) { return bytes_or_none(r.disk_peak_bytes); }},
      {"peak of the process", [](const TrainResult& r) { return bytes_or_none(r.rss_peak_bytes); }},
      {"steps", [](const TrainResult& r) { return format_count(std::ssize(r.losses)); }},
      {"median step", [](const TrainResult& r) { return has_steps(r) ? format_seconds(r.median_step_seconds()) : ""; }},
      {"step, to unlimited (same steps)", [=](const TrainResult& r) { return ratio_cell(r, base); }},
      {"paged per step", paged_cell},
      {"exposed copies per step", exposed_cell},
      {"step, predicted",
       [](const TrainResult& r) { return r.predicted ? format_seconds(r.predicted->step_seconds) : ""; }},
      {"bound of the step",
       [](const TrainResult& r) {
         if (!r.predicted || r.predicted->bound_seconds <= 0 || !has_steps(r)) return std::string();
         return format_seconds(r.predicted->bound_seconds) +
                small(format_percent(r.predicted->bound_seconds / r.median_step_seconds()) + " reached");
       }},
      {"made again, whole run",
       [](const TrainResult& r) { return r.replayed_operators > 0 ? format_count(r.replayed_operators) : ""; }},
      {"parameters", [](const TrainResult& r) { return r.parameters > 0 ? format_count(r.parameters) : ""; }},
      {"loss", [](const TrainResult& r) { return r.losses.empty() ? "" : change(r.losses.front(), r.losses.back()); }},
      {metric,
       [](const TrainResult& r) {
         return r.metric.empty() ? "" : change(r.metric.front().value, r.metric.back().value);
       }},
      {"weights, SHA-256", [&main](const TrainResult& r) { return weights_cell(r, main); }},
  };
}

std::string cells(const Row& row, const TrainResult& main, const Others& others) {
  auto cell = [](const std::string& html, const char* css) {
    return str("<td", css, ">", html.empty() ? "–" : html, "</td>");
  };
  const std::string first = row.cell(main);
  bool any = !first.empty();
  std::string out = str("<tr><th>", escape(row.label), "</th>", cell(first, " class=\"main\""));
  for (const NamedResult& other : others) {
    const std::string html = row.cell(other.result);
    any = any || !html.empty();
    out += cell(html, "");
  }
  return any ? out + "</tr>\n" : "";
}

std::string pair_row(std::string_view label, const std::string& html) {
  return str("<tr><th>", label, "</th><td>", html, "</td></tr>\n");
}

// The seconds of K-FAC's phases: of all ranks where there are several, else of this one.
std::string phase_table(const KfacSummary& k) {
  const bool has_ranks = k.seconds_by_rank.size() > 1;
  const auto shown = [&](const kfac::KfacPhase& phase) {
    return has_ranks ? k.over_ranks(phase).slowest : k.seconds.*phase.seconds;
  };
  double longest = 0;
  for (const auto& phase : kfac::kKfacPhases) longest = std::max(longest, shown(phase));
  std::string out = str(
      "<table>\n<tr><th>phase, whole run</th>",
      has_ranks ? "<th>slowest rank</th><th></th><th>mean</th><th>fastest</th>" : "<th>time</th><th></th>", "</tr>\n");
  for (const auto& phase : kfac::kKfacPhases) {
    out +=
        str("<tr><th>", phase.title, "</th><td>", format_seconds(shown(phase)), "</td>", bar(shown(phase) / longest));
    if (has_ranks) {
      const auto spread = k.over_ranks(phase);
      out += str("<td>", format_seconds(spread.mean), "</td><td>", format_seconds(spread.fastest), "</td>");
    }
    out += "</tr>\n";
  }
  return out + "</table>";
}

}  // namespace

std::string draw_headline(const TrainResult& r, const Others& others) {
  std::string out = "<section class=\"tiles\">\n";
  if (r.peak_bytes > 0)
    out += tile("peak", format_bytes(r.peak_bytes),
                has_budget(r) ? str(format_percent(of_budget(r, r.peak_bytes)), " of ", format_bytes(r.budget_bytes))
                              : "no budget");
  if (has_steps(r)) {
    const std::string ratio = ratio_cell(r, unlimited(others));
    out += tile("median step", format_seconds(r.median_step_seconds()),
                ratio.empty() ? "" : ratio + " unlimited, same steps");
  }
  if (!r.losses.empty()) out += tile("loss", format_value(r.losses.back()), "from " + format_value(r.losses.front()));
  if (!r.metric.empty())
    out += tile(r.metric_name.empty() ? "metric" : r.metric_name, format_value(r.metric.back().value),
                "from " + format_value(r.metric.front().value));
  return out + "</section>\n";
}

std::string draw_summary(const TrainResult& result, const Others& others) {
  std::string out =
      str("<section><h2>In numbers</h2>\n<div class=\"wide\"><table",
          others.empty() ? " class=\"narrow\"" : " class=\"runs\"", ">\n<tr><th></th><th class=\"main\">this run</th>");
  for (const NamedResult& other : others) out += str("<th>", breakable(other.name), "</th>");
  out += "</tr>\n";
  for (const Row& row : summary_rows(result, others)) out += cells(row, result, others);
  return out + "</table></div></section>\n";
}

std::string draw_kfac(const KfacSummary& k) {
  std::string out = "<section><h2>K-FAC</h2>\n<div class=\"wide\"><table class=\"pairs\">\n";
  out += pair_row("strategy", escape(k.strategy));
  out +=
      pair_row("gradient workers", str(format_percent(k.grad_worker_frac), " of the ranks", small(escape(k.reason))));
  auto troubled = [](int64_t count, int64_t factors, std::string_view what) {
    return format_count(count) + (factors > 0 ? small(str(counted(factors, "factor"), " ", what)) : "");
  };
  out += pair_row("layers", format_count(k.layers) + small(str(k.separable_layers, " separable, ", k.block_layers,
                                                               " in blocks, ", k.left_alone, " left alone")));
  out += pair_row("state", format_bytes(k.state_bytes) + small("kept in " + escape(k.storage)));
  out += pair_row("factor updates",
                  troubled(k.counters.factor_updates, k.counters.dropped_factors, "not finite, dropped"));
  out += pair_row("decompositions",
                  troubled(k.counters.decompositions, k.counters.failed_decompositions, "kept the old eigenbasis"));
  return str(out, "</table>\n", phase_table(k), "</div></section>\n");
}

std::string draw_allreduce(const AllreduceSummary& a) {
  std::string out = "<section><h2>Allreduce</h2>\n<div class=\"wide\"><table class=\"pairs\">\n";
  out += pair_row("levels", escape(a.levels));
  out += pair_row("per step", str(format_bytes(a.bytes_per_step), " in ", format_seconds(a.seconds_per_step)));
  if (a.bound_seconds > 0) out += pair_row("bound", format_seconds(a.bound_seconds));
  out += pair_row("waited for", format_seconds(a.exposed_seconds_per_step));
  out += pair_row("beside backward", a.buckets == 0
                                         ? std::string("no")
                                         : str("in ", a.buckets, " buckets of up to ", format_bytes(a.bucket_bytes)));
  out += "</table></div>\n";
  if (!a.explanation.empty()) out += str("<pre>", escape(a.explanation), "</pre>\n");
  return out + "</section>\n";
}

}  // namespace spillway::report
