/// A model as a training runs it: whole, or this rank's part of it.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "runtime/models/task.h"
#include "runtime/passes/tensor_format.h"

namespace spillway::runtime {

/// The samples of a backward pass.
struct BackwardSamples {
  int64_t count = 0;
  bool again = false;  ///< they were passed before in this step, for another part of the model
  int64_t micro_batch = 0;
};

/// The micro-batches of a step, and what happens around their backward passes.
struct StepWork {
  int64_t step = 0;  ///< number of the step in the run, for random numbers
  int64_t micro_batches = 1;
  std::function<Batch(int64_t)> batch = {};  ///< returns a micro-batch, on the model's device
  Amp amp = Amp::off;
  double loss_scale = 1;  ///< factor of the loss that backward begins with, beside 1/micro_batches
  /// Called before each backward with the tensors that it begins at. May be empty.
  std::function<void(at::TensorList roots, const BackwardSamples& samples)> before_backward = {};
  /// Called once before the backward after which every gradient is complete. May be empty.
  std::function<void()> before_last_backward = {};
};

/// A model whose gradients are accumulated over micro-batches. Thread: one at a time.
class TrainableModel {
 public:
  virtual ~TrainableModel() = default;

  /// Returns the parameters and buffers that this rank has, under their names in the whole model.
  virtual torch::nn::Module& module() = 0;
  virtual std::string_view metric_name() const = 0;

  /// Runs forward and backward of all micro-batches. Returns their mean loss, a scalar; undefined on a rank that does
  /// not compute it. Where several ranks compute it, each returns its part of the sum.
  virtual at::Tensor learn(const StepWork& work) = 0;
  /// Returns the mean loss of the micro-batches without gradients; nothing on a rank that does not compute it.
  virtual std::optional<double> loss(const StepWork& work) = 0;
  /// Returns the metric on `batch`, in evaluation mode; nothing on a rank that does not compute it.
  virtual std::optional<double> metric(const Batch& batch, Amp amp) = 0;
};

/// Returns the whole of a task's model on one rank.
std::unique_ptr<TrainableModel> whole_model(std::unique_ptr<Task> task);

}  // namespace spillway::runtime
