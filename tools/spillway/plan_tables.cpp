#include "tools/spillway/plan_tables.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::tools {
namespace {

using namespace runtime;

constexpr size_t kMaxChoices = 8;

template <class... Parts>
std::string line(const char* format, Parts... parts) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, parts...);
  return text.data();
}

std::string seconds_text(double value) {
  return value < 1 ? line("%.3g ms", value * 1e3) : line("%.3g s", value);
}

std::string budget_of(const RunPlan& plan) {
  return plan.budget_bytes == kUnlimitedBytes ? "none" : format_bytes(plan.budget_bytes);
}

std::string needs(const PlanReport& report) {
  const WeighedChoice& best = report.unlimited.best();
  return str("needs    peak ", format_bytes(best.unlimited_bytes), " without a budget, ",
             seconds_text(best.forecast.seconds), " a step; the smallest feasible budget is ",
             format_bytes(best.floor_bytes), " (", best.floor_operator, ")\n");
}

/// Returns the name, and spaces up to a width, which longer names exceed.
std::string padded(std::string name, size_t width) {
  name.resize(std::max(name.size(), width), ' ');
  return name;
}

std::string kinds(const RunPlan& plan) {
  size_t width = 24;
  for (const StepForecast& k : plan.best().forecast.kinds) width = std::max(width, k.kind.size());
  std::string out = "\n" + padded("kind of step", width) +
                    line(" %6s %9s %9s %9s %9s %9s %10s %10s\n", "share", "step", "operators", "copies", "messages",
                         "bound", "peak", "host");
  for (const StepForecast& k : plan.best().forecast.kinds)
    out += padded(k.kind, width) + line(" %6s %9s %9s %9s %9s %9s %10s %10s\n",
                                        k.share > 0 ? line("%.3g %%", 100 * k.share).c_str() : "-",
                                        seconds_text(k.seconds).c_str(), seconds_text(k.compute_seconds).c_str(),
                                        seconds_text(k.copy_seconds).c_str(), seconds_text(k.message_seconds).c_str(),
                                        seconds_text(k.bound_seconds).c_str(), format_bytes(k.peak_bytes).c_str(),
                                        format_bytes(k.host_bytes).c_str());
  return out;
}

std::string choices(const RunPlan& plan) {
  if (plan.weighed.size() < 2) return "";
  const size_t shown = std::min(plan.weighed.size(), kMaxChoices);
  size_t width = 46;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, describe(plan.weighed[i].choice).size());
  std::string out =
      "\n" + padded("choice", width) + line(" %9s %10s %10s %16s\n", "step", "peak", "host", "smallest budget");
  for (size_t i = 0; i < shown; ++i) {
    const auto& [choice, forecast, floor_bytes, floor_operator, unlimited_bytes] = plan.weighed[i];
    out += padded(describe(choice), width) +
           line(" %9s %10s %10s %16s\n", forecast.feasible ? seconds_text(forecast.seconds).c_str() : "-",
                forecast.feasible ? format_bytes(forecast.peak_bytes).c_str() : "-",
                forecast.feasible ? format_bytes(forecast.host_bytes).c_str() : "-", format_bytes(floor_bytes).c_str());
  }
  if (plan.weighed.size() > kMaxChoices) out += str("… and ", plan.weighed.size() - kMaxChoices, " more\n");
  return out;
}

std::string frontier_line(const FrontierRow& row, const FrontierPoint& point, bool has_choices) {
  const WeighedChoice& best = point.plan.best();
  const std::string percent = point.budget_percent > 0 ? line("%g%%", point.budget_percent) : "";
  std::string out =
      line("%6lld %10s %6s", static_cast<long long>(row.size), budget_of(point.plan).c_str(), percent.c_str());
  if (!best.forecast.feasible)
    return out + str("  does not fit; the smallest feasible budget is ", format_bytes(best.floor_bytes), "\n");
  out += line(" %9s %8.3f %10s %10s", seconds_text(best.forecast.seconds).c_str(),
              best.forecast.seconds / row.unlimited.best().forecast.seconds,
              format_bytes(best.forecast.peak_bytes).c_str(), format_bytes(best.forecast.host_bytes).c_str());
  if (point.largest_batch > 0) out += line(" %8lld", static_cast<long long>(point.largest_batch));
  if (has_choices) out += "  " + describe(best.choice);
  return out + "\n";
}

std::string frontier(const PlanReport& report) {
  if (report.frontier.empty()) return "";
  bool has_batches = false;
  for (const FrontierRow& row : report.frontier)
    for (const FrontierPoint& point : row.points) has_batches |= point.largest_batch > 0;
  std::string out = line("\n%6s %10s %6s %9s %8s %10s %10s%s\n", "size", "budget", "", "step", "to none", "peak",
                         "host", has_batches ? "    batch" : "");
  for (const FrontierRow& row : report.frontier) {
    const WeighedChoice& unlimited = row.unlimited.best();
    out += line("%6lld %10s %6s %9s %8.3f %10s %10s\n", static_cast<long long>(row.size), "none", "",
                seconds_text(unlimited.forecast.seconds).c_str(), 1.0,
                format_bytes(unlimited.forecast.peak_bytes).c_str(), "-");
    for (const FrontierPoint& point : row.points) out += frontier_line(row, point, row.unlimited.weighed.size() > 1);
  }
  return out;
}

}  // namespace

std::string plan_tables(const PlanReport& report) {
  std::string out = str("plan     ", report.model, ", size ", report.size, ", batch ", report.batch, ", ", report.world,
                        report.world == 1 ? " rank" : str(" ranks as ", report.levels), "; device profile ",
                        report.profile, " (", report.origin, ")\n");
  out += needs(report);
  out += str("budget   ", budget_of(report.plan), "\n", explain(report));
  if (report.plan.is_feasible()) out += kinds(report.plan);
  out += choices(report.plan) + frontier(report);
  return out + line("\nplanned in %.2f s; nothing was run\n", report.planning_seconds);
}

}  // namespace spillway::tools
