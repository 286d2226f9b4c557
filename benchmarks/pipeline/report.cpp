#include "benchmarks/pipeline/report.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

constexpr const char* kNone = "none";

/// Returns a number with so many digits behind the point, or a dash.
std::string text(bool is_there, double value, int digits) {
  char buffer[32] = "-";
  if (std::abs(value) < 0.5 * std::pow(10, -digits)) value = 0;  // never "-0.00"
  if (is_there) std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

json figures_json(const StepFigures& figures, const StepFigures& first, bool has_refresh) {
  json result{{"step_seconds", figures.seconds},
              {"ratio_to_first", figures.seconds / first.seconds},
              {"utilization", figures.utilization}};
  if (has_refresh) {
    result["filled"] = figures.filled;
    result["exceeded_seconds"] = figures.exceeded_seconds;
  }
  return result;
}

}  // namespace

void print_heading() {
  std::printf("%33s %25s %16s %14s %14s %16s\n", "", "step, ms", "/ first", "use, %", "filled, %", "exceeded, ms");
  std::printf("%-12s %-9s %6s %7s", "schedule", "refresh", "every", "done in");
  std::printf(" %9s %8s %7s %8s %7s %7s %6s %7s %6s %8s %7s\n", "predicted", "measured", "ratio", "pred.", "meas.",
              "pred.", "meas.", "pred.", "meas.", "pred.", "meas.");
}

void print(const ReportRow& row) {
  const bool has_refresh = row.refresh != kNone;
  const auto& [predicted, measured] = row.of.figures;
  std::printf("%-12s %-9s %6s %7s", row.schedule.c_str(), row.refresh.c_str(),
              text(has_refresh, row.of.plan.rate.interval(), 2).c_str(),
              text(has_refresh, row.of.done_in_steps, 0).c_str());
  std::printf(" %9.2f %8.2f %7.3f %8.3f %7.3f %7.1f %6.1f %7s %6s %8s %7s\n", 1e3 * predicted.seconds,
              1e3 * measured.seconds, measured.seconds / predicted.seconds,
              predicted.seconds / row.first.predicted.seconds, measured.seconds / row.first.measured.seconds,
              100 * predicted.utilization, 100 * measured.utilization,
              text(has_refresh, 100 * predicted.filled, 1).c_str(), text(has_refresh, 100 * measured.filled, 1).c_str(),
              text(has_refresh, 1e3 * predicted.exceeded_seconds, 2).c_str(),
              text(has_refresh, 1e3 * measured.exceeded_seconds, 2).c_str());
  std::fflush(stdout);
}

void print_empty_items(const std::vector<std::pair<std::string, EmptyItem>>& of_schedules) {
  std::string line;
  for (const auto& [schedule, item] : of_schedules)
    line += str(line.empty() ? "" : ", ", schedule, " ", text(true, 1e6 * item.seconds, 0), " (",
                text(true, 1e6 * item.processor_seconds, 0), ")");
  std::printf("µs that an empty item adds to a step (of a processor, in all threads): %s\n", line.c_str());
}

void print_beside(const std::vector<BesideItems>& messages) {
  for (const BesideItems& row : messages)
    std::printf(
        "messages of %s beside items of %.0f ms: %.3f ms alone; %.2f ms of a step of %.1f ms exposed, %.1f %% hidden\n",
        format_bytes(row.bytes).c_str(), 1e3 * kBesideSeconds, 1e3 * row.message_seconds, 1e3 * row.exposed_seconds,
        1e3 * row.step_seconds, 100 * row.hidden);
}

json to_json(const ReportRow& row) {
  const bool has_refresh = row.refresh != kNone;
  const auto& [predicted, measured] = row.of.figures;
  json result{{"schedule", row.schedule},
              {"refresh", row.refresh},
              {"predicted", figures_json(predicted, row.first.predicted, has_refresh)},
              {"measured", figures_json(measured, row.first.measured, has_refresh)}};
  if (!has_refresh) return result;
  result["asked_interval"] = row.interval;
  result["turns"] = row.of.plan.rate.turns;
  result["cycle_steps"] = row.of.plan.rate.steps;
  result["done_in_steps"] = row.of.done_in_steps;
  return result;
}

json to_json(const BesideItems& messages) {
  return {{"bytes", messages.bytes},
          {"message_seconds", messages.message_seconds},
          {"step_seconds", messages.step_seconds},
          {"exposed_seconds", messages.exposed_seconds},
          {"hidden", messages.hidden}};
}

}  // namespace spillway::tools
