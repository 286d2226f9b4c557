/// What the trainer sees of a model: something with parameters, a loss and a metric.
#pragma once
#include <torch/nn.h>

#include <memory>
#include <string_view>

#include "runtime/batch.h"
#include "runtime/mlp.h"
#include "runtime/unet3d.h"

namespace spillway {

/// A model with its objective. Thread: one at a time.
class Task {
 public:
  virtual ~Task() = default;

  /// The parameters and buffers, in training mode unless the caller changed it. Lives as long as the task.
  virtual torch::nn::Module& module() = 0;

  /// Forward pass and loss: a scalar, the mean over the batch, ready for backward().
  /// Throws c10::Error when the batch does not have the model's shape.
  virtual at::Tensor loss(const Batch& batch) = 0;

  /// The model's quality on `batch`, higher is better, 0 … 1: without gradients and in evaluation mode; the mode is
  /// put back. unet3d: hard Dice at 0.5, the mean over labels. mlp: accuracy.
  virtual double metric(const Batch& batch) = 0;

  /// `dice`, `accuracy`: the key that the metric is reported under.
  virtual std::string_view metric_name() const = 0;
};

/// Options of every model; each reads its own.
struct TaskOptions {
  UNet3dOptions unet3d{};
  MlpOptions mlp{};
};

/// The task called `model`: unet3d (soft Dice) or mlp (cross entropy). Weights are drawn from the default CPU
/// generator. Throws BadRequest naming the known models, or the bad option.
std::unique_ptr<Task> make_task(std::string_view model, const TaskOptions& options = {});

}  // namespace spillway
