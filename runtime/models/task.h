/// The trainer's view of a model: parameters, a loss and a metric.
#pragma once
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <memory>
#include <string_view>
#include <vector>

#include "runtime/models/autoencoder.h"
#include "runtime/models/batch.h"
#include "runtime/models/bert.h"
#include "runtime/models/bp3d.h"
#include "runtime/models/mlp.h"
#include "runtime/models/part.h"
#include "runtime/models/resnet50.h"
#include "runtime/models/unet3d.h"

namespace spillway::runtime {

/// The loss and the metric of a model. Objectives have no state.
class Objective {
 public:
  virtual ~Objective() = default;

  /// Returns the loss of the model's output: a scalar, the mean over the batch.
  virtual at::Tensor loss(const at::Tensor& output, const Batch& batch) const = 0;

  /// Returns the quality of the output, 0 … 1, where higher is better. unet3d: hard Dice at 0.5, the mean over labels.
  /// autoencoder: explained variance. Others: accuracy, over voxels (bp3d), images or vectors, or the words to guess
  /// (bert-base).
  virtual double metric(const at::Tensor& output, const Batch& batch) const = 0;

  /// Returns the key that the metric is reported under: `dice`, `explained_variance` or `accuracy`.
  virtual std::string_view metric_name() const = 0;
};

/// A model with its objective. Thread: one at a time.
class Task {
 public:
  virtual ~Task() = default;

  /// Returns the parameters and buffers, in training mode unless the caller changed it. They live as long as the task.
  virtual torch::nn::Module& module() = 0;

  /// Returns the model's output. Throws c10::Error when the batch does not have the model's shape.
  virtual at::Tensor forward(const Batch& batch) = 0;

  /// Returns the model as parts, whose last output is forward()'s, bit for bit where nothing is dropped. Without
  /// recomputation of its own they outlive the task.
  virtual std::vector<Part> parts() const = 0;

  virtual std::shared_ptr<const Objective> objective() const = 0;

  /// Runs the forward pass and returns the loss, ready for backward(). Throws as forward().
  at::Tensor loss(const Batch& batch) { return objective()->loss(forward(batch), batch); }

  /// Returns the objective's metric on `batch`. It is measured without gradients and in evaluation mode; the former
  /// mode is restored.
  double metric(const Batch& batch);

  std::string_view metric_name() const { return objective()->metric_name(); }
};

/// A scope of evaluation mode without gradients.
class Evaluation {
 public:
  explicit Evaluation(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) {
    module.eval();
  }
  ~Evaluation() { module_.train(was_training_); }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
  at::NoGradGuard no_grad_;
};

/// Options of every model; each model reads its own.
struct TaskOptions {
  UNet3dOptions unet3d{};
  Bp3dOptions bp3d{};
  std::vector<double> bp3d_class_weights{};  ///< class weights of the loss; empty: all 1
  ResNet50Options resnet50{};
  BertOptions bert{};
  MlpOptions mlp{};
  AutoencoderOptions autoencoder{};
};

/// Makes the task called `model`: unet3d (soft Dice), bp3d (class-weighted cross entropy), resnet50 and mlp (cross
/// entropy), bert-base (cross entropy of the words to guess), autoencoder (reconstruction_loss()). Weights are drawn
/// from the default CPU generator. Throws BadRequest naming the known models, or the bad option.
std::unique_ptr<Task> make_task(std::string_view model, const TaskOptions& options = {});

}  // namespace spillway::runtime
