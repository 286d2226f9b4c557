#include <cmath>
#include <nlohmann/json.hpp>

#include "core/program.h"
#include "runtime/options/curvature_json.h"
#include "runtime/report/report.h"

namespace spillway {
namespace {

using nlohmann::json;

json seconds_json(const kfac::KfacSeconds& seconds) {
  json phases = json::object();
  for (const auto& phase : kfac::kKfacPhases) phases[std::string(phase.name)] = seconds.*phase.seconds;
  return phases;
}

json kfac_json(const KfacSummary& k) {
  json by_rank = json::array();
  for (const kfac::KfacSeconds& seconds : k.seconds_by_rank) by_rank.push_back(seconds_json(seconds));
  return {{"strategy", k.strategy},
          {"grad_worker_frac", k.grad_worker_frac},
          {"reason", k.reason},
          {"layers", k.layers},
          {"separable_layers", k.separable_layers},
          {"block_layers", k.block_layers},
          {"storage", k.storage},
          {"factor_samples", k.samples},
          {"rank", k.rank},
          {"plan", k.plan.empty() ? json(nullptr) : runtime::curvature_json(k.plan)},
          {"curvature_delay", k.curvature_delay},
          {"left_alone", k.left_alone},
          {"factor_updates", k.counters.factor_updates},
          {"decompositions", k.counters.decompositions},
          {"dropped_factors", k.counters.dropped_factors},
          {"failed_decompositions", k.counters.failed_decompositions},
          {"warm_starts", k.counters.warm_starts},
          {"damping_scale", k.counters.damping_scale},
          {"state_bytes", k.state_bytes},
          {"seconds", seconds_json(k.seconds)},
          {"seconds_by_rank", by_rank}};
}

json allreduce_json(const AllreduceSummary& a) {
  const bool known = a.bound_seconds > 0 && a.seconds_per_step > 0;
  return {{"levels", a.levels},
          {"algorithm", a.algorithm},
          {"bytes_per_step", a.bytes_per_step},
          {"seconds_per_step", a.seconds_per_step},
          {"percent_of_bound", known ? json(100 * a.bound_seconds / a.seconds_per_step) : json(nullptr)},
          {"bound_seconds", a.bound_seconds > 0 ? json(a.bound_seconds) : json(nullptr)},
          {"exposed_seconds_per_step", a.exposed_seconds_per_step},
          {"hidden_percent", a.hidden_percent()},
          {"buckets", a.buckets},
          {"bucket_bytes", a.bucket_bytes}};
}

json ranks_json(const PipelineSummary& p) {
  json ranks = json::array();
  for (const PipelineRankSummary& rank : p.ranks)
    ranks.push_back({{"rank", rank.rank},
                     {"stages", rank.stages},
                     {"busy_seconds", rank.seconds.passes()},
                     {"bubble_seconds", p.bubble(rank.seconds)},
                     {"forward_seconds", rank.seconds[PipelineWork::forward]},
                     {"backward_seconds", rank.seconds[PipelineWork::backward]},
                     {"kfac_seconds", rank.seconds.kfac()},
                     {"wait_seconds", rank.seconds.wait},
                     {"update_seconds", rank.seconds[PipelineWork::update]},
                     {"refresh_steps_mean", rank.refresh_steps_mean ? json(*rank.refresh_steps_mean) : json(nullptr)},
                     {"age_steps_max", rank.age_steps_max ? json(*rank.age_steps_max) : json(nullptr)},
                     {"held_pair_bytes", rank.held_pair_bytes ? json(*rank.held_pair_bytes) : json(nullptr)},
                     {"peak_bytes", rank.peak_bytes}});
  return ranks;
}

json channels_json(const PipelineSummary& p) {
  json channels = json::array();
  for (const PipelineChannelSummary& channel : p.channels)
    channels.push_back({{"from", channel.from},
                        {"to", channel.to},
                        {"from_rank", channel.from_rank},
                        {"to_rank", channel.to_rank},
                        {"bytes_per_step", std::llround(channel.bytes_per_step)},
                        {"exposed_seconds", channel.exposed_seconds}});
  return channels;
}

json filled_json(const FilledSummary& f) {
  return {{"cycle_steps", f.cycle},
          {"pieces", f.pieces},
          {"step_seconds", f.step_seconds},
          {"step_seconds_without", f.step_seconds_without},
          {"kfac_seconds", f.kfac_seconds}};
}

json pipeline_json(const PipelineSummary& p) {
  const PipelineSeconds mean = p.mean_seconds();
  json seconds{{"wait", mean.wait}};
  for (PipelineWork work :
       {PipelineWork::forward, PipelineWork::backward, PipelineWork::statistics, PipelineWork::average,
        PipelineWork::renew, PipelineWork::share, PipelineWork::exchange, PipelineWork::update})
    seconds[std::string(name(work))] = mean[work];
  const json plan = p.filled ? filled_json(*p.filled) : json(nullptr);
  const auto planned = [&](const char* key) { return p.filled ? plan[key] : json(nullptr); };
  return {{"schedule", p.schedule},
          {"filled", plan},
          {"stages", p.stages()},
          {"copies", p.copies},
          {"micro_batches", p.micro_batches},
          {"parts", p.parts},
          {"cut", p.cut},
          {"pass_seconds", p.pass_seconds},
          {"utilization", p.utilization()},
          {"cycle_steps", planned("cycle_steps")},
          {"bubble_seconds", p.bubble(mean)},
          {"filled_seconds", mean.kfac()},
          {"exceeded_seconds", p.filled ? json(p.filled->exceeded_seconds()) : json(nullptr)},
          {"bound_seconds", p.bound_seconds()},
          {"seconds", std::move(seconds)},
          {"predicted",
           {{"pass_seconds", p.predicted_pass_seconds},
            {"utilization", p.predicted_utilization},
            {"step_seconds", planned("step_seconds")}}},
          {"by_rank", ranks_json(p)},
          {"channels", channels_json(p)}};
}

json or_null(bool known, const auto& value) {
  return known ? json(value) : json(nullptr);
}

json options_json(const TrainOptions& o) {
  return {{"version", kVersion},
          {"model", o.model.name},
          {"device", o.memory.device},
          {"engine", name(o.memory.engine)},
          {"batch", o.data.batch},
          {"accumulate", o.optimizer.accumulate},
          {"amp", name(o.precision.amp)},
          {"memory_format", name(o.model.layout)},
          {"seed", o.seed},
          {"optimizer", name(o.optimizer.kind)},
          {"lr", o.optimizer.lr},
          {"rest_optimizer", o.optimizer.rest ? json(name(o.optimizer.rest->kind)) : json()},
          {"rest_lr", o.optimizer.rest ? json(o.optimizer.rest->lr) : json()},
          {"split_bytes", or_null(o.memory.split_in_use() != kUnlimitedBytes, o.memory.split_in_use())}};
}

json case_json(const TrainResult& r) {
  const bool volumes = r.shape[0] > 0;
  const bool cube = volumes && r.shape[0] == r.shape[1] && r.shape[1] == r.shape[2];
  return {{"edge", cube ? json(r.shape[0]) : or_null(r.image_edge > 0, r.image_edge)},
          {"shape", or_null(volumes, r.shape)},
          {"sequence_length", or_null(r.sequence_length > 0, r.sequence_length)}};
}

json memory_json(const TrainResult& r) {
  json by_category;
  for (size_t c = 0; c < kCategoryCount; ++c)
    by_category[std::string(name(static_cast<Category>(c)))] = r.peak_by_category[c];
  return {{"budget_bytes", or_null(r.budget_bytes != kUnlimitedBytes, r.budget_bytes)},
          {"peak_bytes", r.peak_bytes},
          {"over_budget_bytes", r.over_budget_bytes()},
          {"peak_by_category", by_category},
          {"rss_peak_bytes", r.rss_peak_bytes},
          {"floor_bytes", r.floor_bytes},
          {"host_peak_bytes", r.host_peak_bytes},
          {"disk_peak_bytes", r.disk_peak_bytes},
          {"library_bytes", r.observed ? json(r.observed->library_bytes) : json(nullptr)},
          {"unconstrained_peak_bytes", r.observed ? json(r.observed->peak_bytes) : json(nullptr)},
          {"exposed_copy_seconds", r.exposed_copy_seconds},
          {"bytes_out", r.bytes_out},
          {"bytes_in", r.bytes_in},
          {"bytes_to_disk", r.bytes_to_disk},
          {"bytes_from_disk", r.bytes_from_disk},
          {"replayed_operators", r.replayed_operators}};
}

json steps_json(const TrainResult& r) {
  json metrics = json::object(), curve = json::array();
  if (!r.metric.empty()) metrics[r.metric_name] = r.metric.back().value;
  for (const MetricPoint& point : r.metric) curve.push_back({{"step", point.step}, {"value", point.value}});
  return {{"steps", r.losses.size()},
          {"resumed_from_step", r.resumed_from_step ? json(*r.resumed_from_step) : json(nullptr)},
          {"losses", r.losses},
          {"learning_rates", r.learning_rates},
          {"metrics", metrics},
          {"metric_curve", curve},
          {"step_seconds", r.step_seconds},
          {"step_kinds", r.step_kinds},
          {"step_seconds_median", r.median_step_seconds()},
          {"bound_seconds", r.predicted ? json(r.predicted->bound_seconds) : json(nullptr)},
          {"interrupted", r.interrupted}};
}

json prediction_json(const Prediction& p) {
  return {{"peak_bytes", p.peak_bytes}, {"step_seconds", p.step_seconds}, {"kind", p.kind}};
}

json loss_scale_json(const LossScaleSummary& l) {
  return {{"scale", l.scale}, {"skipped_steps", l.skipped_steps}};
}

}  // namespace

json to_json(const TrainResult& r) {
  json out{{"world_size", r.world_size},
           {"threads", r.threads},
           {"parameters", r.parameters},
           {"weights_sha256", r.weights_sha256},
           {"replicas", nullptr},
           {"predicted", r.predicted ? prediction_json(*r.predicted) : json(nullptr)},
           {"loss_scale", r.loss_scale ? loss_scale_json(*r.loss_scale) : json(nullptr)},
           {"pipeline", r.pipeline ? pipeline_json(*r.pipeline) : json(nullptr)},
           {"kfac", r.kfac ? kfac_json(*r.kfac) : json(nullptr)},
           {"allreduce", r.allreduce ? allreduce_json(*r.allreduce) : json(nullptr)}};
  if (r.world_size > 1) out["replicas"] = {{"equal", true}, {"compared_after_steps", r.replicas_compared_after}};
  for (const json& part : {options_json(r.options), case_json(r), memory_json(r), steps_json(r)}) out.update(part);
  return out;
}

}  // namespace spillway
