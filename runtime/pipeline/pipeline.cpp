#include "runtime/pipeline/pipeline.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "pipe/channels.h"
#include "pipe/cut.h"
#include "pipe/schedules.h"
#include "pipe/simulate.h"

namespace spillway::runtime {
namespace {

pipe::StepProgram make_program(PipelineSchedule schedule, const PipelineOptions& options, int64_t micro_batches) {
  const int ranks = options.ranks, count = micro_batches;
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return pipe::gpipe(ranks, count);
    case PipelineSchedule::interleaved:
      return pipe::interleaved(ranks, count, options.chunks);
    case PipelineSchedule::zero_bubble:
      return pipe::zero_bubble(ranks, count);
    case PipelineSchedule::chimera:
      return pipe::chimera(ranks, count);
    case PipelineSchedule::one_forward_one_backward:
    case PipelineSchedule::automatic:
      break;
  }
  return pipe::one_forward_one_backward(ranks, count);
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

/// Returns milliseconds with one decimal.
std::string milliseconds(double seconds) {
  const int64_t tenths = std::llround(1e4 * seconds);
  return str(tenths / 10, ".", tenths % 10);
}

/// Adds a part's seconds to its stage's.
void add_seconds(const PartProfile& part, bool recompute, pipe::StageSeconds& stage) {
  stage.forward += part.forward_seconds;
  stage.input_gradient += part.backward_seconds / 2 + (recompute ? part.forward_seconds : 0);
  stage.weight_gradient += part.backward_seconds / 2;
}

/// True where each rank has a part that may stand alone in one of its stages.
bool may_stand(const PipelinePlan& plan, const std::vector<PartProfile>& profiles) {
  for (int place = 0; place < plan.program.graph.ranks(); ++place) {
    bool stands = false;
    for (const auto [stage, direction] : plan.stages_at(place))
      stands = stands ||
               std::any_of(profiles.begin() + plan.first_part(stage), profiles.begin() + plan.first_part(stage + 1),
                           [](const PartProfile& part) { return part.may_stand_alone; });
    if (!stands) return false;
  }
  return true;
}

/// Returns the cut with the shortest longest stage of those in which each rank may stand.
std::vector<int> best_cut(PipelinePlan plan, const std::vector<PartProfile>& profiles) {
  if (plan.directions() > 1) {  // a rank has stages of both ends, and one of them is enough
    std::vector<PartProfile> free = profiles;
    for (PartProfile& part : free) part.may_stand_alone = true;
    plan.cut = best_cut(plan.stages(), free);
    if (may_stand(plan, profiles)) return plan.cut;
  }
  return best_cut(plan.stages(), profiles);
}

std::vector<int> cut_of(const PipelineOptions& options, const PipelinePlan& plan,
                        const std::vector<PartProfile>& profiles) {
  if (options.cut.empty()) return best_cut(plan, profiles);
  const int stages = plan.stages();
  int64_t left = std::ssize(profiles);  // parts of the stages that come
  for (int64_t count : options.cut) left = count >= 1 && count <= left ? left - count : -1;
  if (std::ssize(options.cut) == stages && left == 0) return {options.cut.begin(), options.cut.end()};
  std::string text;
  for (int64_t count : options.cut) text += str(text.empty() ? "" : ",", count);
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
    std::set<int> places, holders;
    for (int stage = 0; stage < plan.stages(); ++stage)
      for (int part = plan.first_part(stage); part < plan.first_part(stage + 1); ++part)
        for (const std::string& module : parts[part].modules)
          if (is_within(name, module)) {
            const int place = plan.program.graph.rank_of[0][stage];
            places.insert(place);
            holders.insert(plan.holders_of(place).front());
          }
    // Ranks with the same weights average their gradients anyway. Chimera's two ends are such ranks.
    if (holders.size() > 1 && plan.directions() > 1)
      throw BadRequest(str("[pipeline] '", name,
                           "' is a weight of stages on several ranks; chimera takes those of the "
                           "first and the last stage alone"));
    if (holders.size() > 1) shared.push_back({name, {places.begin(), places.end()}});
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

int PipelinePlan::messages_before(const pipe::Item& item, int place) const {
  if (item.work == pipe::Work::weight_gradient || item.work == pipe::Work::update) return 0;
  const bool is_forward = item.work == pipe::Work::forward;
  int count = 0;
  for (const pipe::Edge& edge : program.graph.edges) {
    const int other = is_forward ? edge.from : edge.to;
    const bool reads = (is_forward ? edge.to : edge.from) == item.stage;
    if (reads && program.rank_of(other, item.micro_batch) != place) ++count;
  }
  return count;
}

std::vector<PlacedStage> PipelinePlan::stages_at(int place) const {
  std::vector<PlacedStage> all;
  for (int stage = 0; stage < stages(); ++stage)
    for (int direction = 0; direction < directions(); ++direction)
      if (program.graph.rank_of[direction][stage] == place) all.push_back({stage, direction});
  return all;
}

std::vector<int> PipelinePlan::micro_batches_of(int direction) const {
  std::vector<int> all;
  for (int m = 0; m < program.micro_batches(); ++m)
    if (program.copy_of[m] == direction) all.push_back(m);
  return all;
}

int PipelinePlan::number_in_direction(int micro_batch) const {
  const auto& copy_of = program.copy_of;
  return std::count(copy_of.begin(), copy_of.begin() + micro_batch, copy_of[micro_batch]);
}

std::vector<int> PipelinePlan::holders_of(int place) const {
  std::set<int> places{place};
  for (const PlacedStage& at : stages_at(place))
    for (const auto& rank_of : program.graph.rank_of) places.insert(rank_of[at.stage]);
  return {places.begin(), places.end()};
}

namespace {

/// Makes the plan of one schedule.
PipelinePlan plan_of(PipelineSchedule schedule, const PipelineOptions& options, int64_t micro_batches,
                     const std::vector<Part>& parts, const std::vector<PartProfile>& profiles,
                     const std::vector<std::string>& parameters) {
  PipelinePlan plan;
  plan.schedule = schedule;
  plan.recompute = options.recompute;
  plan.program = make_program(schedule, options, micro_batches);
  if (plan.stages() > std::ssize(parts))
    throw BadRequest(str("[pipeline] ", plan.stages(), " stages are asked for, and the model has ", parts.size(),
                         " parts; use fewer ranks", schedule == PipelineSchedule::interleaved ? " or chunks" : ""));
  plan.cut = cut_of(options, plan, profiles);
  std::vector<int> stage_of;
  plan.costs.stages.resize(plan.stages());
  for (int stage = 0; stage < plan.stages(); ++stage)
    for (int i = 0; i < plan.cut[stage]; ++i) {
      add_seconds(profiles[stage_of.size()], options.recompute, plan.costs.stages[stage]);
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

}  // namespace

PipelinePlan plan_pipeline(const PipelineOptions& options, int64_t micro_batches, const std::vector<Part>& parts,
                           const std::vector<PartProfile>& profiles, const std::vector<std::string>& parameters) {
  if (options.schedule != PipelineSchedule::automatic)
    return plan_of(options.schedule, options, micro_batches, parts, profiles, parameters);
  std::optional<PipelinePlan> best;
  double best_seconds = 0;
  std::vector<std::pair<PipelineSchedule, double>> compared;
  for (PipelineSchedule schedule : schedules_of_same_bits()) {
    try {
      PipelinePlan plan = plan_of(schedule, options, micro_batches, parts, profiles, parameters);
      const double seconds = pipe::simulate(plan.program, plan.costs).seconds;
      compared.emplace_back(schedule, seconds);
      if (!best || seconds < best_seconds) best = std::move(plan), best_seconds = seconds;
    } catch (const BadRequest&) {  // others may take what this one refuses, but for the first
      if (schedule == schedules_of_same_bits().front()) throw;
    }
  }
  best->compared = std::move(compared);
  return *std::move(best);
}

std::string describe(const PipelinePlan& plan) {
  std::string stages;
  for (int stage = 0; stage < plan.stages(); ++stage) {
    const int first = plan.first_part(stage), last = plan.first_part(stage + 1) - 1;
    stages += str(stage ? ", " : "", plan.parts[first], first < last ? " to " + plan.parts[last] : "");
  }
  std::string compared;
  for (const auto& [schedule, seconds] : plan.compared)
    compared += str(compared.empty() ? " (on paper " : ", ", name(schedule), " takes ", milliseconds(seconds), " ms");
  if (!compared.empty()) compared += ")";
  const pipe::SimulatedStep simulated = pipe::simulate(plan.program, plan.costs);
  return str("the model is cut into ", plan.stages(), " stages over ", plan.program.graph.ranks(), " ranks, by ",
             name(plan.schedule), compared, ": ", stages, "; with ", plan.program.micro_batches(),
             " micro-batches ranks wait for ", std::llround(100 * (1 - simulated.utilization())), " % of their time");
}

double message_seconds(const Pipeline& pipeline, const ddl::Comm& world) {
  const auto& costs = world->allreduce->costs();
  if (!costs || costs->levels.empty()) return 0;
  int64_t most = 0;
  for (const auto& values : pipeline.plan.values_of_edge) {
    int64_t bytes = 0;
    for (int value : values) bytes += pipeline.plan.values[value].bytes();
    most = std::max(most, bytes);
  }
  const ddl::LinkCost& link = costs->levels.back();
  return link.latency_seconds + static_cast<double>(most) / link.bytes_per_second;
}

std::shared_ptr<const Pipeline> make_pipeline(const PipelineOptions& options, int64_t micro_batches, Task& task,
                                              const Batch& batch, Amp amp, const ddl::Comm& world,
                                              const MayStandAlone& may_stand_alone, const Now& now) {
  const int ranks = ddl::size_of(world);
  if (options.ranks < 2 || ranks % options.ranks != 0)
    throw BadRequest(str("[pipeline] the model is to be cut over ", options.ranks, " ranks, and there ",
                         ranks == 1 ? "is " : "are ", ranks, "; allowed: a divisor of the ranks, 2 or more"));
  auto profiles = profile_parts(task, batch, amp, now);
  agree_on_seconds(profiles, world);
  const std::vector<Part> parts = task.parts();
  for (size_t i = 0; may_stand_alone && i < parts.size(); ++i) profiles[i].may_stand_alone = may_stand_alone(parts[i]);
  std::vector<std::string> parameters;
  for (const auto& parameter : task.module().named_parameters()) parameters.push_back(parameter.key());

  auto pipeline = std::make_shared<Pipeline>();
  pipeline->plan = plan_pipeline(options, micro_batches, parts, profiles, parameters);
  pipeline->places = options.ranks;
  pipeline->copies = ranks / pipeline->places;
  pipeline->place = ddl::rank_of(world) / pipeline->copies;
  pipeline->copy = ddl::rank_of(world) % pipeline->copies;
  ddl::Communicator& all = *world->communicator;
  const auto rank_at = [&](int place, int copy) { return place * pipeline->copies + copy; };
  std::vector<int> of_place, of_copy;
  for (int place : pipeline->plan.holders_of(pipeline->place))
    for (int copy = 0; copy < pipeline->copies; ++copy) of_place.push_back(rank_at(place, copy));
  for (int place = 0; place < pipeline->places; ++place) of_copy.push_back(rank_at(place, pipeline->copy));
  if (of_place.size() > 1) pipeline->of_place = ddl::make_calibrated_comm(all.group(of_place));
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
