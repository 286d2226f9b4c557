#include "runtime/pipeline/pipeline.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "pipe/cut.h"
#include "pipe/lines.h"
#include "pipe/schedules.h"

namespace spillway::runtime {
namespace {

pipe::Program make_program(const PipelineOptions& options, int ranks, int micro_batches) {
  if (options.schedule == "gpipe") return pipe::gpipe(ranks, micro_batches);
  if (options.schedule == "1f1b") return pipe::one_forward_one_backward(ranks, micro_batches);
  if (options.schedule == "interleaved")
    return pipe::interleaved(ranks, micro_batches, static_cast<int>(options.chunks));
  throw BadRequest(str("[pipeline] schedule is '", options.schedule, "'; allowed: ", PipelineOptions::kSchedules));
}

/// Returns the cut with the shortest longest stage. Parts that may not stand alone stay with a neighbor.
std::vector<int> best_cut(int stages, const std::vector<PartProfile>& profiles) {
  std::vector<pipe::Part> units;
  std::vector<int> parts_of_unit;
  bool is_open = false;  // the last unit may not stand alone so far
  for (const PartProfile& profile : profiles) {
    const bool joins = is_open || (!profile.may_stand_alone && !units.empty());
    if (!joins) units.emplace_back(), parts_of_unit.push_back(0);
    units.back().seconds += profile.forward_seconds + profile.backward_seconds;
    ++parts_of_unit.back();
    is_open = !profile.may_stand_alone && (is_open || !joins);
  }
  if (stages > std::ssize(units))
    throw BadRequest(str("[pipeline] ", stages, " stages are asked for, and only ", units.size(), " of the model's ",
                         profiles.size(), " parts can be stages of their own; use fewer ranks"));
  std::vector<int> cut;
  size_t unit = 0;
  for (int units_of_stage : pipe::cut(units, stages)) {
    int& parts = cut.emplace_back(0);
    for (int i = 0; i < units_of_stage; ++i) parts += parts_of_unit[unit++];
  }
  return cut;
}

std::vector<int> cut_of(const PipelineOptions& options, int stages, const std::vector<PartProfile>& profiles) {
  if (options.cut.empty()) return best_cut(stages, profiles);
  std::vector<int> cut(options.cut.begin(), options.cut.end());
  const int64_t parts = std::accumulate(cut.begin(), cut.end(), int64_t{0});
  const bool fits = std::ssize(cut) == stages && parts == std::ssize(profiles) &&
                    std::all_of(cut.begin(), cut.end(), [](int count) { return count >= 1; });
  if (fits) return cut;
  std::string text;
  for (int count : cut) text += str(text.empty() ? "" : ",", count);
  throw BadRequest(str("[pipeline] the cut is ", text, "; allowed: ", stages, " numbers of 1 and more, of ",
                       profiles.size(), " parts together"));
}

/// Returns the edges between stages, and the parts whose outputs go along each.
std::pair<std::vector<pipe::Edge>, std::vector<std::vector<int>>> edges_of(const std::vector<Part>& parts,
                                                                           const std::vector<int>& stage_of) {
  std::map<std::pair<int, int>, std::set<int>> found;
  for (size_t i = 0; i < parts.size(); ++i)
    for (int read : parts[i].reads)
      if (stage_of[read] != stage_of[i]) found[{stage_of[read], stage_of[i]}].insert(read);
  std::pair<std::vector<pipe::Edge>, std::vector<std::vector<int>>> edges;
  for (const auto& [ends, values] : found) {
    edges.first.push_back({ends.first, ends.second});
    edges.second.emplace_back(values.begin(), values.end());
  }
  return edges;
}

bool is_within(const std::string& parameter, const std::string& module) {
  return parameter == module || parameter.starts_with(module + ".");
}

std::vector<SharedWeight> shared_weights(const PipelinePlan& plan, const std::vector<Part>& parts,
                                         const std::vector<std::string>& parameters) {
  std::vector<SharedWeight> shared;
  for (const std::string& name : parameters) {
    std::set<int> places;
    for (int stage = 0; stage < plan.stages(); ++stage)
      for (int part = plan.first_part(stage); part < plan.first_part(stage + 1); ++part)
        for (const std::string& module : parts[part].modules)
          if (is_within(name, module)) places.insert(plan.program.graph.rank_of[0][stage]);
    if (places.size() > 1) shared.push_back({name, {places.begin(), places.end()}});
  }
  return shared;
}

/// Returns rank 0's times on every rank.
void agree_on_seconds(std::vector<PartProfile>& profiles, const ddl::Comm& world) {
  std::vector<double> seconds;
  for (const PartProfile& profile : profiles) {
    seconds.push_back(profile.forward_seconds);
    seconds.push_back(profile.backward_seconds);
  }
  ddl::broadcast(*world->communicator, std::as_writable_bytes(std::span(seconds)), 0);
  for (size_t i = 0; i < profiles.size(); ++i) {
    profiles[i].forward_seconds = seconds[2 * i];
    profiles[i].backward_seconds = seconds[2 * i + 1];
  }
}

}  // namespace

int PipelinePlan::first_part(int stage) const {
  return std::accumulate(cut.begin(), cut.begin() + stage, 0);
}

int PipelinePlan::stage_of_module(const std::string& name) const {
  for (int stage = 0; stage < stages(); ++stage)
    for (int part = first_part(stage); part < first_part(stage + 1); ++part)
      for (const std::string& module : modules[part])
        if (is_within(name, module)) return stage;
  throw BadRequest(str("[pipeline] no part of the model has '", name, "'"));
}

std::vector<int> PipelinePlan::stages_at(int place) const {
  std::vector<int> all;
  for (int stage = 0; stage < stages(); ++stage)
    if (program.graph.rank_of[0][stage] == place) all.push_back(stage);
  return all;
}

PipelinePlan plan_pipeline(const PipelineOptions& options, int64_t micro_batches, const std::vector<Part>& parts,
                           const std::vector<PartProfile>& profiles, const std::vector<std::string>& parameters) {
  PipelinePlan plan;
  plan.schedule = options.schedule;
  plan.program = make_program(options, static_cast<int>(options.ranks), static_cast<int>(micro_batches));
  if (plan.stages() > std::ssize(parts))
    throw BadRequest(str("[pipeline] ", plan.stages(), " stages are asked for, and the model has ", parts.size(),
                         " parts; use fewer ranks", options.schedule == "interleaved" ? " or chunks" : ""));
  plan.cut = cut_of(options, plan.stages(), profiles);
  std::vector<int> stage_of;
  plan.costs.stages.resize(plan.stages());
  for (int stage = 0; stage < plan.stages(); ++stage)
    for (int i = 0; i < plan.cut[stage]; ++i) {
      const PartProfile& profile = profiles[stage_of.size()];
      pipe::StageSeconds& seconds = plan.costs.stages[stage];
      seconds.forward += profile.forward_seconds;
      seconds.input_gradient += profile.backward_seconds / 2;
      seconds.weight_gradient += profile.backward_seconds / 2;
      stage_of.push_back(stage);
    }
  for (size_t i = 0; i < parts.size(); ++i) {
    plan.parts.push_back(parts[i].name);
    plan.modules.push_back(parts[i].modules);
    plan.values.push_back(profiles[i].output);
  }
  std::tie(plan.program.graph.edges, plan.values_of_edge) = edges_of(parts, stage_of);
  pipe::check(plan.program);
  plan.shared = shared_weights(plan, parts, parameters);
  plan.slots = pipe::slots_needed(plan.program);
  return plan;
}

std::string describe(const PipelinePlan& plan) {
  std::string stages;
  for (int stage = 0; stage < plan.stages(); ++stage) {
    const int first = plan.first_part(stage), last = plan.first_part(stage + 1) - 1;
    stages += str(stage ? ", " : "", plan.parts[first], first < last ? " to " + plan.parts[last] : "");
  }
  const pipe::Replayed replayed = pipe::replay(plan.program, plan.costs);
  return str("the model is cut into ", plan.stages(), " stages over ", plan.program.graph.ranks(), " ranks, by ",
             plan.schedule, ": ", stages, "; with ", plan.program.micro_batches(), " micro-batches ranks wait for ",
             static_cast<int64_t>(std::round(100 * (1 - replayed.utilization()))), " % of their time");
}

std::shared_ptr<const Pipeline> make_pipeline(const PipelineOptions& options, int64_t micro_batches, Task& task,
                                              const Batch& batch, Amp amp, const ddl::Comm& world,
                                              const MayStandAlone& may_stand_alone) {
  const int ranks = ddl::size_of(world);
  if (options.ranks < 2 || ranks % options.ranks != 0)
    throw BadRequest(str("[pipeline] the model is to be cut over ", options.ranks, " ranks, and there ",
                         ranks == 1 ? "is " : "are ", ranks, "; allowed: a divisor of the ranks, 2 or more"));
  auto profiles = profile_parts(task, batch, amp);
  agree_on_seconds(profiles, world);
  const std::vector<Part> parts = task.parts();
  for (size_t i = 0; may_stand_alone && i < parts.size(); ++i) profiles[i].may_stand_alone = may_stand_alone(parts[i]);
  std::vector<std::string> parameters;
  for (const auto& parameter : task.module().named_parameters()) parameters.push_back(parameter.key());

  auto pipeline = std::make_shared<Pipeline>();
  pipeline->plan = plan_pipeline(options, micro_batches, parts, profiles, parameters);
  pipeline->places = static_cast<int>(options.ranks);
  pipeline->copies = ranks / pipeline->places;
  pipeline->place = ddl::rank_of(world) / pipeline->copies;
  pipeline->copy = ddl::rank_of(world) % pipeline->copies;
  ddl::Communicator& all = *world->communicator;
  const auto rank_at = [&](int place, int copy) { return place * pipeline->copies + copy; };
  std::vector<int> of_place, of_copy;
  for (int copy = 0; copy < pipeline->copies; ++copy) of_place.push_back(rank_at(pipeline->place, copy));
  for (int place = 0; place < pipeline->places; ++place) of_copy.push_back(rank_at(place, pipeline->copy));
  if (pipeline->copies > 1) pipeline->of_place = ddl::make_calibrated_comm(all.group(of_place));
  pipeline->of_copy = all.group(of_copy);
  for (const SharedWeight& weight : pipeline->plan.shared) {
    std::vector<int> members;
    for (int place : weight.places) members.push_back(rank_at(place, pipeline->copy));
    const bool is_member = std::find(members.begin(), members.end(), all.rank()) != members.end();
    pipeline->of_shared.push_back(is_member ? ddl::make_comm(all.group(members)) : ddl::Comm());
  }
  return pipeline;
}

}  // namespace spillway::runtime
