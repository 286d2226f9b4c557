/// Runs the items of this rank's stages, of a model that is cut over ranks.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "runtime/models/trainable_model.h"
#include "runtime/pipeline/channel_meter.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/pipeline/pipeline_clock.h"
#include "runtime/pipeline/pipeline_times.h"

namespace spillway::runtime {

struct PipelineExecutorOptions {
  c10::Device device = at::kCPU;
  uint64_t seed = 0;                               ///< seed of dropout, which then depends on no cut and no schedule
  std::shared_ptr<PipelineClock> clock = nullptr;  ///< null: a steady clock
};

/// A model whose stages are on the ranks of a pipeline. Each rank runs its items in the order of the plan's program.
/// Messages travel meanwhile. Weights of other ranks' stages are freed.
class PipelineExecutor : public TrainableModel {
 public:
  /// Makes each learn() run these items and extras in their order, where the rank does other work while it waits. Null:
  /// the plan's program. `run_extra` does the work of an extra. `items` must outlive those calls.
  virtual void follow(const std::vector<pipe::FilledItem>* items,
                      std::function<void(const pipe::FilledItem& extra)> run_extra) = 0;
  /// Returns the items and the extras of the last learn(), in order, with their times by the clock.
  virtual const std::vector<pipe::FilledItem>& spans() const = 0;
  virtual const PipelineTotals& totals() const = 0;
  /// Returns the messages of all learn() calls, by channel.
  virtual const std::vector<ChannelMessages>& channel_messages() const = 0;
  /// Returns the mean seconds of each stage's items since the last call, zeros for other ranks' stages.
  virtual std::vector<pipe::StageSeconds> take_stage_seconds() = 0;
  /// Returns a weight's number among the parameters of the whole model. Throws std::out_of_range for another tensor.
  virtual int64_t number_of(const at::Tensor& parameter) const = 0;
  /// Sums the gradients of weights that several ranks have. Call it when a step's gradients are complete, and averaged
  /// over copies. Collective over the pipeline.
  virtual void sum_shared_gradients() = 0;
};

/// Returns a module with the submodules and parameters of the stages at a place, under their names in the model.
std::shared_ptr<torch::nn::Module> module_at(const PipelinePlan& plan, int place, Task& task);

/// Takes this rank's stages from `task`. learn() calls before_last_backward only where the rank has one stage. Calls
/// throw CommError when another rank does not answer. Collective over the copy of the model.
std::unique_ptr<PipelineExecutor> pipeline_executor(std::shared_ptr<const Pipeline> pipeline,
                                                    std::unique_ptr<Task> task, const PipelineExecutorOptions& options);

}  // namespace spillway::runtime
