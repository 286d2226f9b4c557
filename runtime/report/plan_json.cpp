#include "runtime/report/plan_json.h"

#include <nlohmann/json.hpp>

#include "core/bytes.h"

namespace spillway {
namespace {

using namespace runtime;
using nlohmann::json;

json bytes_or_null(int64_t bytes) {
  return bytes == kUnlimitedBytes ? json(nullptr) : json(bytes);
}

json to_json(const StepForecast& kind) {
  return {{"kind", kind.kind},
          {"share", kind.share},
          {"step_seconds", kind.seconds},
          {"compute_seconds", kind.compute_seconds},
          {"exposed_copy_seconds", kind.copy_seconds},
          {"message_seconds", kind.message_seconds},
          {"bound_seconds", kind.bound_seconds},
          {"peak_bytes", kind.peak_bytes},
          {"host_bytes", kind.host_bytes},
          {"bytes_out", kind.bytes_out},
          {"bytes_in", kind.bytes_in}};
}

json to_json(const WeighedChoice& weighed) {
  json all{{"strategy", kfac::name(weighed.choice.workers.strategy)},
           {"grad_worker_frac", weighed.choice.workers.grad_worker_frac},
           {"placement", kfac::name(weighed.choice.placement)},
           {"feasible", weighed.forecast.feasible},
           {"floor_bytes", weighed.floor_bytes},
           {"floor_operator", weighed.floor_operator},
           {"unconstrained_peak_bytes", weighed.unlimited_bytes}};
  if (weighed.choice.gradient_buffer_bytes > 0) all["gradient_buffer_bytes"] = weighed.choice.gradient_buffer_bytes;
  if (const auto& pipeline = weighed.choice.pipeline) {
    all["schedule"] = name(pipeline->schedule);
    all["recompute"] = pipeline->recompute;
  }
  if (!weighed.forecast.feasible) return all;
  all["step_seconds"] = weighed.forecast.seconds;
  all["peak_bytes"] = weighed.forecast.peak_bytes;
  all["host_bytes"] = weighed.forecast.host_bytes;
  all["kinds"] = json::array();
  for (const StepForecast& kind : weighed.forecast.kinds) all["kinds"].push_back(to_json(kind));
  return all;
}

json to_json(const RunPlan& plan) {
  json choices = json::array();
  for (const WeighedChoice& weighed : plan.weighed) choices.push_back(to_json(weighed));
  return {{"budget_bytes", bytes_or_null(plan.budget_bytes)},
          {"feasible", plan.is_feasible()},
          {"reason", plan.reason()},
          {"choices", choices}};
}

json to_json(const FrontierPoint& point) {
  json all = to_json(point.plan.best());
  all["budget_bytes"] = bytes_or_null(point.plan.budget_bytes);
  all["budget_percent"] = point.budget_percent > 0 ? json(point.budget_percent) : json(nullptr);
  if (point.largest_batch > 0) all["largest_batch"] = point.largest_batch;
  return all;
}

json to_json(const FrontierRow& row) {
  json points = json::array();
  for (const FrontierPoint& point : row.points) points.push_back(to_json(point));
  return {{"size", row.size}, {"unlimited", to_json(row.unlimited.best())}, {"rows", points}};
}

/// Returns the best choice under a neighboring budget; null where the plan has no budget.
json to_json(const std::optional<RunPlan>& neighbor) {
  if (!neighbor) return nullptr;
  json all = to_json(neighbor->best());
  all["budget_bytes"] = neighbor->budget_bytes;
  return all;
}

json names_of(const std::vector<Proposal>& changes) {
  json all = json::array();
  for (const Proposal& change : changes) all.push_back({{"name", change.name}, {"flags", change.flags}});
  return all;
}

json to_json(const std::vector<Proposal>& proposals) {
  json all = json::array();
  for (const Proposal& proposal : proposals) {
    all.push_back(to_json(proposal.plan.best()));
    all.back().update({{"name", proposal.name}, {"flags", proposal.flags}});
  }
  return all;
}

}  // namespace

json to_json(const PlanReport& report) {
  json frontier = json::array();
  for (const FrontierRow& row : report.frontier) frontier.push_back(to_json(row));
  return {{"model", report.model},
          {"size", report.size},
          {"batch", report.batch},
          {"world_size", report.world},
          {"levels", report.levels},
          {"device_profile", report.profile},
          {"unlimited", to_json(report.unlimited)},
          {"plan", to_json(report.plan)},
          {"smaller", to_json(report.smaller)},
          {"larger", to_json(report.larger)},
          {"taken", names_of(report.taken)},
          {"proposals", to_json(report.proposals)},
          {"frontier", frontier},
          {"planning_seconds", report.planning_seconds}};
}

}  // namespace spillway
