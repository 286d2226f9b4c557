/// A model cut over ranks: the plan, which every rank makes alike, and this rank's place in it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddl/torch/comm.h"
#include "pipe/costs.h"
#include "pipe/program.h"
#include "runtime/options/train_options.h"
#include "runtime/pipeline/part_profile.h"

namespace spillway::runtime {

/// A weight that stages on several ranks use. Each has a copy, and their gradients are summed.
struct SharedWeight {
  std::string name;         ///< name of the parameter in the model
  std::vector<int> places;  ///< places of the ranks, ascending
};

/// A stage of a rank. With chimera micro-batches go through the stages in two directions, 0 and 1, and a rank has a
/// stage of each.
struct PlacedStage {
  int stage = 0;
  int direction = 0;
};

/// The plan of a pipeline, the same on all of its ranks.
struct PipelinePlan {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;  ///< never automatic
  /// The schedules that it was chosen from, with the seconds of a step's passes on paper; empty where it was given.
  std::vector<std::pair<PipelineSchedule, double>> compared = {};
  bool recompute = false;
  std::vector<std::vector<std::string>> modules;  ///< by part: names of its submodules and parameters
  std::vector<std::string> parts;                 ///< their names
  std::vector<int> cut;                           ///< number of parts of each stage
  std::vector<ValueShape> values;                 ///< by part: its output for a micro-batch
  pipe::StepProgram program;                      ///< program of a training step
  std::vector<std::vector<int>> values_of_edge;   ///< by edge of the graph: the parts whose outputs go along it
  pipe::Costs costs;                              ///< measured seconds of the stages
  std::vector<SharedWeight> shared;
  int slots = 1;  ///< messages that each end of a channel keeps

  int stages() const { return program.graph.stages; }
  /// Returns the first part of a stage; of stages(): the number of parts.
  int first_part(int stage) const;
  /// Returns the first stage that has a submodule.
  int stage_of_module(const std::string& name) const;
  /// Returns the number of messages that a rank at a place waits for before an item.
  int messages_before(const pipe::Item& item, int place) const;
  /// Returns the stages of the rank at a place, ascending.
  std::vector<PlacedStage> stages_at(int place) const;
  int directions() const { return program.graph.rank_of.size(); }
  /// Returns the micro-batches of a direction, ascending.
  std::vector<int> micro_batches_of(int direction) const;
  /// Returns a micro-batch's number among those of its direction.
  int number_in_direction(int micro_batch) const;
  /// Returns the places of the ranks that have the same weights as the one at a place, ascending.
  std::vector<int> holders_of(int place) const;
};

/// Returns `the model is cut into 2 stages by 1f1b: embedding to layer1, layer2 to head; …`.
std::string describe(const PipelinePlan& plan);

/// Makes the plan of a model with these parts. `parameters` are the names of the model's parameters. Throws BadRequest
/// where the cut does not fit the parts, or the schedule takes no such number of ranks or micro-batches.
PipelinePlan plan_pipeline(const PipelineOptions& options, int64_t micro_batches, const std::vector<Part>& parts,
                           const std::vector<PartProfile>& profiles, const std::vector<std::string>& parameters);

/// The ranks of a run whose model is cut, as this rank sees them. Rank r has place r / copies and copy r mod copies, so
/// that the ranks which average gradients are near each other.
struct Pipeline {
  PipelinePlan plan;
  int places = 1, place = 0;
  int copies = 1, copy = 0;
  ddl::Comm of_place = {};                     ///< the ranks with the same weights; null for one
  std::shared_ptr<ddl::Communicator> of_copy;  ///< the ranks of this copy, by place
  std::vector<ddl::Comm> of_shared = {};       ///< by plan.shared: the ranks of this copy that use it; null elsewhere

  /// Returns the place of the last stage that micro-batches of a direction come to.
  int place_of_last_stage(int direction = 0) const { return plan.program.graph.rank_of[direction].back(); }
};

/// True for a part that may be a stage without others.
using MayStandAlone = std::function<bool(const Part& part)>;

/// Makes the groups of a pipeline and its plan. `task` is a copy of the model that parts may be tried on with `batch`;
/// rank 0's times count, which are told by `now`. Collective over the world. Throws BadRequest as plan_pipeline(), and
/// where the number of ranks is no multiple of options.ranks.
std::shared_ptr<const Pipeline> make_pipeline(const PipelineOptions& options, int64_t micro_batches, Task& task,
                                              const Batch& batch, Amp amp, const ddl::Comm& world,
                                              const MayStandAlone& may_stand_alone = nullptr,
                                              const Now& now = steady_now());

/// Returns the time from a message's start until it has come, by the measured rates of the farthest ranks' links; 0
/// where they are not known.
double message_seconds(const Pipeline& pipeline, const ddl::Comm& world);

}  // namespace spillway::runtime
