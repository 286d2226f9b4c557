#include "runtime/pipeline/summarize_pipeline.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "pipe/channels.h"
#include "pipe/simulate.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

json channels_json(const PipelineRun& run) {
  json channels = json::array();
  for (const ChannelMessages& own : run.model.channel_messages()) {
    const bool sends = own.channel.from_rank == run.pipeline.place;
    channels.push_back({{"number", own.number}, {"sent_bytes", sends ? own.bytes : 0}, {"waited", own.waited}});
  }
  return channels;
}

/// Returns the recorded step's spans; null where none was recorded.
json spans_json(const PipelineRun& run) {
  if (!run.recorded_since) return nullptr;
  json spans = json::array();
  for (const PipelineSpan& span : measured_spans(run.model.spans(), run.times, run.in_bubbles, *run.recorded_since))
    spans.push_back({{"work", span.work},
                     {"stage", span.stage},
                     {"micro_batch", span.micro_batch},
                     {"begin", span.begin},
                     {"end", span.end}});
  return spans;
}

std::vector<PipelineSpan> spans_of(const json& rank) {
  std::vector<PipelineSpan> spans;
  for (const json& span : rank["spans"])
    spans.push_back({span["work"].get<PipelineWork>(), span["stage"], span["micro_batch"], span["begin"], span["end"]});
  return spans;
}

/// Returns this rank's seconds per step.
PipelineSeconds own_seconds(const PipelineRun& run) {
  const PipelineTotals& totals = run.model.totals();
  const auto passes = static_cast<double>(std::max<int64_t>(1, totals.passes));
  const auto steps = static_cast<double>(std::max<int64_t>(1, run.times.steps));
  PipelineSeconds seconds{.of = {}, .wait = totals.wait / passes};
  seconds[PipelineWork::forward] = totals.forward / passes;
  seconds[PipelineWork::backward] = totals.backward / passes;
  if (run.in_bubbles) {
    const auto& of_kind = run.in_bubbles->seconds();
    for (size_t kind = 0; kind < of_kind.size(); ++kind)
      seconds.of[static_cast<size_t>(PipelineWork::statistics) + kind] = of_kind[kind] / passes;
  }
  seconds[PipelineWork::exchange] = run.times.average_seconds / steps;
  seconds[PipelineWork::update] = run.times.update_seconds / steps;
  return seconds;
}

json describe_own(const PipelineRun& run) {
  const PipelineTotals& totals = run.model.totals();
  const PipelineSeconds seconds = own_seconds(run);
  const SteadyTime zero = run.recorded_since.value_or(SteadyTime());
  std::vector<int> stages;
  for (const PlacedStage& at : run.pipeline.plan.stages_at(run.pipeline.place)) stages.push_back(at.stage);
  return {{"stages", stages},
          {"seconds", seconds.of},
          {"wait", seconds.wait},
          {"pass_seconds", totals.seconds / static_cast<double>(std::max<int64_t>(1, totals.passes))},
          {"peak_bytes", run.peak_bytes},
          {"held_pair_bytes", run.in_bubbles ? json(run.in_bubbles->held_peak_bytes()) : json(nullptr)},
          {"channels", channels_json(run)},
          {"zero", std::chrono::duration<double>(zero.time_since_epoch()).count()},
          {"spans", spans_json(run)}};
}

PipelineRankSummary rank_of(const json& rank) {
  PipelineRankSummary own{.stages = rank["stages"],
                          .seconds = {.of = rank["seconds"], .wait = rank["wait"]},
                          .peak_bytes = rank["peak_bytes"]};
  if (!rank["held_pair_bytes"].is_null()) own.held_pair_bytes = rank["held_pair_bytes"];
  return own;
}

std::vector<PipelineChannelSummary> channels_of(const PipelineRun& run, const std::vector<json>& ranks) {
  const auto passes = static_cast<double>(std::max<int64_t>(1, run.model.totals().passes));
  std::vector<PipelineChannelSummary> channels;
  for (const pipe::Channel& one : pipe::channels(run.pipeline.plan.program))
    channels.push_back({.from = one.from_stage,
                        .to = one.to_stage,
                        .from_rank = one.from_rank * run.pipeline.copies + run.pipeline.copy,
                        .to_rank = one.to_rank * run.pipeline.copies + run.pipeline.copy});
  for (const json& rank : ranks)
    for (const json& own : rank["channels"]) {
      PipelineChannelSummary& channel = channels.at(own["number"].get<size_t>());
      channel.bytes_per_step += own["sent_bytes"].get<double>() / passes;
      channel.exposed_seconds += own["waited"].get<double>() / passes;
    }
  return channels;
}

/// Adds what the plan of K-FAC's work says.
void add_plan(const KfacInBubbles& in_bubbles, PipelineSummary& summary) {
  const pipe::Filled& filled = in_bubbles.filled();
  const auto cycle = static_cast<double>(filled.steps());
  summary.filled = {filled.steps(), std::ssize(in_bubbles.extras()), filled.seconds / cycle,
                    filled.unfilled_seconds / cycle,
                    *std::max_element(filled.filled.begin(), filled.filled.end()) / cycle};
  for (size_t place = 0; place < summary.ranks.size(); ++place) {
    const RefreshSteps steps = refresh_steps(filled, in_bubbles.extras(), place);
    summary.ranks[place].refresh_steps_mean = steps.mean;
    summary.ranks[place].age_steps_max = steps.oldest;
  }
}

PipelineStep step_of(const PipelineRun& run, const std::vector<json>& ranks) {
  std::vector<std::vector<PipelineSpan>> measured;
  std::vector<double> zeros;
  double update = std::numeric_limits<double>::infinity();  // others wait for the busiest rank in it
  for (const json& rank : ranks) {
    measured.push_back(spans_of(rank));
    zeros.push_back(rank["zero"]);
    update = std::min(update, rank_of(rank).seconds[PipelineWork::update]);
  }
  const auto& hosts = run.pipeline.of_copy->hosts();
  const bool share_clock = std::all_of(hosts.begin(), hosts.end(), [&](int host) { return host == hosts.front(); });
  PipelineStep step{.begin = move_to_common_zero(measured, zeros, share_clock, run.pipeline.place),
                    .fills_bubbles = run.times.fills_bubbles};
  auto planned = planned_spans(run.pipeline.plan, run.times, run.in_bubbles, update);
  for (int place = 0; place < run.pipeline.places; ++place)
    step.ranks.push_back({.rank = place * run.pipeline.copies + run.pipeline.copy,
                          .measured = std::move(measured[place]),
                          .planned = std::move(planned[place])});
  return step;
}

}  // namespace

PipelineSummary summarize_pipeline(const PipelineRun& run) {
  const PipelinePlan& plan = run.pipeline.plan;
  std::vector<json> ranks;
  for (const std::string& text : ddl::gather_texts(*run.pipeline.of_copy, describe_own(run).dump()))
    ranks.push_back(json::parse(text));
  PipelineSummary summary{.schedule = std::string(name(plan.schedule)),
                          .copies = run.pipeline.copies,
                          .micro_batches = plan.program.micro_batches(),
                          .parts = plan.parts,
                          .cut = plan.cut,
                          .channels = channels_of(run, ranks)};
  for (const json& rank : ranks) {
    PipelineRankSummary& own = summary.ranks.emplace_back(rank_of(rank));
    own.rank = (std::ssize(summary.ranks) - 1) * run.pipeline.copies + run.pipeline.copy;
    summary.pass_seconds = std::max(summary.pass_seconds, rank["pass_seconds"].get<double>());
  }
  if (run.in_bubbles && run.in_bubbles->filled().steps() > 0) add_plan(*run.in_bubbles, summary);
  const pipe::SimulatedStep simulated = pipe::simulate(plan.program, plan.costs);
  summary.predicted_pass_seconds = simulated.seconds;
  summary.predicted_utilization = simulated.utilization();
  if (run.recorded_since) summary.step = step_of(run, ranks);
  return summary;
}

}  // namespace spillway::runtime
