/// The exchange of a step's gradients between ranks.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ddl/torch/gradient_allreduce.h"
#include "runtime/pipeline/pipeline_executor.h"
#include "runtime/recording/step_recorder.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {

/// Requests to a run while it trains, joined over ranks once a step. The requests of one rank apply to every rank.
struct StepRequests {
  bool stop = false;        ///< this step is to be the last one
  bool checkpoint = false;  ///< a checkpoint is to follow this step
};

/// The outcome of a step's passes, of one rank or of all.
struct PassesOutcome {
  double loss = 0;  ///< mean over ranks, once joined
  StepRequests requested = {};
  bool left = false;  ///< by some rank, in their midst
};

/// An exchange of gradients: their average over the ranks with the same weights, beside backward or after it, and sums
/// over stages for weights that several stages use.
class GradientExchange {
 public:
  /// `module` is this rank's, whose gradients are those of `parameters`. `pipelined` is null where the model is whole.
  /// Both and `context` must outlive this object. Collective. Throws CommError.
  GradientExchange(const RunContext& context, const torch::nn::Module& module,
                   const std::vector<at::Tensor>& parameters, PipelineExecutor* pipelined);

  /// Tells `listener`, which outlives this object, of the buckets that travel beside backward.
  void listen(MessageListener& listener);
  /// Adds these buckets to a recorder, which outlives this object.
  void record(StepRecorder& recorder);

  /// Returns StepWork::before_last_backward.
  std::function<void()> before_last_backward();
  /// Completes the gradients of a step in which this rank has had `loss`, undefined where it has none. Averages buffers
  /// and the loss, and joins the ranks' requests. A rank that has left the step takes part all the same, because the
  /// other ranks wait for its gradients. Collective over the world. Throws CommError.
  PassesOutcome join(const at::Tensor& loss, const PassesOutcome& own);

  /// Returns the bytes of the last step's gradients.
  int64_t bytes() const { return bytes_; }
  /// Returns the time within allreduces of gradients, of all steps. exposed_seconds() is the part that steps waited
  /// for.
  double seconds() const;
  double exposed_seconds() const;
  /// Returns the exchange beside backward; null where there is none.
  const ddl::GradientAllreduce* overlapped() const { return overlapped_ ? &*overlapped_ : nullptr; }

 private:
  /// Averages the gradients that are left, and returns the tensors to average after them.
  std::vector<at::Tensor> average_gradients();

  const RunContext& context_;
  const torch::nn::Module& module_;
  const std::vector<at::Tensor> parameters_;
  PipelineExecutor* const pipelined_;
  std::optional<ddl::GradientAllreduce> overlapped_;
  int64_t bytes_ = 0;
  double after_backward_seconds_ = 0;  ///< time within allreduces
};

/// Returns the gradients of the parameters that have one.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

/// Gives zeros as the gradient of a parameter to the ranks whose graph did not reach it, where another rank's graph
/// did. A parameter that no rank's graph reached stays without a gradient. Collective; `parameters` are alike on all
/// ranks. Throws CommError.
void complete_gradients(const std::vector<at::Tensor>& parameters, const ddl::Comm& comm);

}  // namespace spillway::runtime
