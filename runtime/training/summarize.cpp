#include "runtime/training/summarize.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "core/error.h"
#include "core/json_text.h"
#include "ddl/allreduce/explain.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/gpu_backend.h"
#include "kfac/plan/assignment.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/pipeline/summarize_pipeline.h"
#include "runtime/recording/summarize_paging.h"
#include "runtime/training/kfac_state.h"
#include "runtime/training/training_run.h"
#include "swap/schedule/schedule.h"
#include "swap/schedule/step_trace.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

int64_t rss_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

AllreduceSummary summarize_allreduce(const TrainingRun& run, ddl::CommunicatorHandle& comm, size_t steps) {
  AllreduceSummary summary;
  const int64_t bytes = run.gradients().bytes();
  const auto* overlapped = run.gradients().overlapped();
  const double count = static_cast<double>(std::max<size_t>(1, steps));
  summary.levels = comm.communicator->levels().shape();
  summary.bytes_per_step = bytes;
  summary.seconds_per_step = run.gradients().seconds() / count;
  summary.exposed_seconds_per_step = run.gradients().exposed_seconds() / count;
  if (overlapped) {
    summary.buckets = overlapped->buckets();
    summary.bucket_bytes = overlapped->bucket_bytes();
  }
  if (comm.gpus->uses_nccl()) {
    summary.algorithm = comm.gpus->decision();
    summary.explanation = str("allreduce on GPUs by ", comm.gpus->decision(), "\n");
    return summary;
  }
  const ddl::Choice choice = comm.allreduce->choice(overlapped ? overlapped->bucket_bytes() : bytes);
  const auto totals = overlapped ? overlapped->allreduces() : comm.allreduce->for_bytes(bytes).totals();
  const int64_t mean_bytes = totals.calls > 0 ? totals.bytes / totals.calls : bytes;
  constexpr auto kElement = ddl::Element::float32;
  summary.algorithm = choice.plan.name();
  summary.explanation =
      describe(explain(choice, mean_bytes / element_bytes(kElement), kElement, comm.allreduce->costs(), totals));
  if (const auto& costs = comm.allreduce->costs())
    summary.bound_seconds = bound_seconds(choice.plan.levels(), bytes, *costs);
  return summary;
}

PipelineSummary summarize_pipeline(TrainingRun& run, const Pipeline& pipeline, const StepRecording& recording) {
  PipelineRun ended{.pipeline = pipeline,
                    .model = run.pipelined()->model(),
                    .in_bubbles = run.in_bubbles(),
                    .times = run.pipelined()->times(),
                    .peak_bytes = run.session().stats().peak_bytes};
  if (recording.step >= 0) ended.recorded_since = recording.began;
  return summarize_pipeline(ended);
}

std::optional<Prediction> predict(const TrainResult& result, const Session& session) {
  std::map<std::string_view, int64_t> counts;
  Prediction prediction;
  for (const std::string& kind : result.step_kinds)
    if (int64_t count = ++counts[kind]; count >= counts[prediction.kind]) prediction.kind = kind;
  const swap::Schedule* schedule = session.schedule(prediction.kind);
  if (!schedule || schedule->predicted_seconds <= 0) return std::nullopt;  // none fits the budget: all on demand
  prediction.step_seconds = schedule->predicted_seconds;
  prediction.bound_seconds = schedule->bound_seconds;
  for (const swap::StepTrace* trace : session.traces())
    if (const swap::Schedule* of_kind = session.schedule(trace->kind))
      prediction.peak_bytes = std::max(prediction.peak_bytes, of_kind->predicted_peak_bytes);
  return prediction;
}

std::vector<kfac::KfacSeconds> of_all_ranks(ddl::Communicator& comm, const kfac::KfacSeconds& own) {
  std::vector<kfac::KfacSeconds> all(comm.size());
  ddl::allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Takes the layers, the bytes and the seconds of the other stages into a summary of this rank's.
void add_stages(KfacSummary& summary, const kfac::Kfac& kfac, const Pipeline& pipeline) {
  json layers = json::object();
  for (const auto& [shape, weight, bias] : kfac.layers())
    layers[shape.name] = {{"is_separable", shape.separable},
                          {"has_blocks", shape.input_blocks > 1 || shape.output_blocks > 1}};
  const json own{{"first_holder", pipeline.plan.holders_of(pipeline.place).front()},
                 {"layers", layers},
                 {"state_bytes", summary.state_bytes}};
  const auto texts = ddl::gather_texts(*pipeline.of_copy, json_text(own));
  std::map<int, int64_t> state_bytes;  // by the first place that has a stage
  std::map<std::string, std::pair<bool, bool>> all;
  for (const std::string& text : texts) {
    const json rank = json::parse(text);
    state_bytes.emplace(rank["first_holder"].get<int>(), rank["state_bytes"].get<int64_t>());
    for (const auto& [name, layer] : rank["layers"].items())
      all[name] = {layer["is_separable"].get<bool>(), layer["has_blocks"].get<bool>()};
  }
  KfacSummary of_copy;
  of_copy.seconds_by_rank = of_all_ranks(*pipeline.of_copy, summary.seconds);
  for (const auto& phase : kfac::kKfacPhases) summary.seconds.*phase.seconds = of_copy.over_ranks(phase).mean;
  summary.layers = std::ssize(all);
  summary.separable_layers =
      std::count_if(all.begin(), all.end(), [](const auto& layer) { return layer.second.first; });
  summary.block_layers = std::count_if(all.begin(), all.end(), [](const auto& layer) { return layer.second.second; });
  summary.state_bytes = 0;
  for (const auto& [place, bytes] : state_bytes) summary.state_bytes += bytes;
}

}  // namespace

std::vector<kfac::SkippedLayer> left_alone(const kfac::Kfac& kfac, const RunContext& context) {
  if (!context.pipeline) return kfac.left_alone();
  json own = json::array();
  for (const auto& [name, reason] : kfac.left_alone()) own.push_back({{"name", name}, {"reason", reason}});
  std::vector<kfac::SkippedLayer> all;
  std::set<std::string> known;
  for (const std::string& text : ddl::gather_texts(*context.pipeline->of_copy, json_text(own)))
    for (const json& module : json::parse(text))
      if (const auto name = module["name"].get<std::string>(); known.insert(name).second)
        all.push_back({name, module["reason"].get<std::string>()});
  return all;
}

KfacSummary summarize(const kfac::Kfac& kfac, const RunContext& context, double fraction, const std::string& reason) {
  const int64_t world = context.holders();
  KfacSummary summary;
  summary.strategy = kfac::name(kfac.options().strategy);
  const int64_t workers = kfac::gradient_workers(kfac.options().strategy, fraction, world);
  summary.grad_worker_frac = static_cast<double>(workers) / static_cast<double>(world);
  summary.reason = reason;
  summary.layers = std::ssize(kfac.layers());
  for (const auto& [shape, weight, bias] : kfac.layers()) {
    summary.separable_layers += shape.separable;
    summary.block_layers += shape.input_blocks > 1 || shape.output_blocks > 1;
  }
  summary.storage = kfac::name(kfac.options().storage);
  summary.samples = kfac::name(kfac.options().factor_samples);
  summary.rank = kfac::name(kfac.options().rank_in_use());
  summary.plan = context.options.kfac.preconditioner.layer_curvature;
  summary.curvature_delay = kfac.options().curvature_delay;
  summary.left_alone = std::ssize(left_alone(kfac, context));
  summary.state_bytes = kfac.usage().bytes.held();
  summary.counters = model_counters(kfac, context);
  summary.seconds = kfac.usage().seconds;
  summary.seconds_by_rank = {summary.seconds};
  if (context.comm) summary.seconds_by_rank = of_all_ranks(*context.comm->communicator, summary.seconds);
  if (context.pipeline) add_stages(summary, kfac, *context.pipeline);
  return summary;
}

void finish(TrainResult& result, TrainingRun& run, const RunContext& context) {
  Session& session = run.session();
  const SessionStats stats = session.stats();
  result.peak_bytes = max_over_ranks(context.comm, stats.peak_bytes);
  result.peak_by_category = stats.peak_by_category;
  result.host_peak_bytes = max_over_ranks(context.comm, stats.host_peak_bytes);
  result.disk_peak_bytes = max_over_ranks(context.comm, stats.disk_peak_bytes);
  result.bytes_to_disk = stats.bytes_to_disk;
  result.bytes_from_disk = stats.bytes_from_disk;
  result.exposed_copy_seconds = stats.pager.exposed_seconds;
  result.bytes_out = stats.pager.bytes_out;
  result.bytes_in = stats.pager.bytes_in;
  result.replayed_operators = stats.pager.replays;
  result.predicted = predict(result, session);
  if (result.predicted)
    result.paging = summarize_paging(*session.trace(result.predicted->kind), *session.schedule(result.predicted->kind));
  if (result.predicted) result.predicted->peak_bytes = max_over_ranks(context.comm, result.predicted->peak_bytes);
  result.floor_bytes = max_over_ranks(context.comm, session.neediest().bytes());
  if (result.observed) result.floor_bytes = std::max(result.floor_bytes, result.observed->floor_bytes);
  result.rss_peak_bytes = max_over_ranks(context.comm, rss_peak_bytes());
  result.parameters = run.parameters();
  result.threads = max_over_ranks(context.comm, at::get_num_threads());
  if (context.pipeline) result.pipeline = summarize_pipeline(run, *context.pipeline, result.recording);
  if (const ddl::Comm& comm = context.same_weights())
    result.allreduce = summarize_allreduce(run, *comm, result.losses.size());
}

}  // namespace spillway::runtime
