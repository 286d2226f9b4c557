#include "runtime/models/task.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "runtime/models/losses.h"
#include "runtime/models/model_info.h"

namespace spillway::runtime {
namespace {

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

class UNet3dTask final : public Task {
 public:
  explicit UNet3dTask(const UNet3dOptions& options) : net_(options) {}
  torch::nn::Module& module() override { return *net_; }
  at::Tensor loss(const Batch& batch) override { return soft_dice_loss(forward(batch), batch.target); }
  double metric(const Batch& batch) override {
    Evaluation evaluation(*net_);
    return hard_dice(forward(batch), batch.target).mean().item<double>();
  }
  std::string_view metric_name() const override { return "dice"; }

 private:
  /// Returns the output in float32, because sums over voxels need its digits even where the network computes with
  /// fewer.
  at::Tensor forward(const Batch& batch) { return net_->forward(batch.input).to(at::kFloat); }

  UNet3d net_;
};

/// Returns the scores of a batch; truth_of() returns the correct classes.
template <class Net>
at::Tensor scores_of(Net& net, const Batch& batch) {
  return net->forward(batch.input);
}
template <class Net>
at::Tensor truth_of(const Net&, const Batch& batch) {
  return batch.target;
}

/// Returns the scores of the words to guess. The target is [B, 2, K]: places in the sequence and the words that belong
/// there.
at::Tensor scores_of(Bert& net, const Batch& batch) {
  return net->forward(batch.input, batch.target.select(1, 0)).flatten(0, 1);
}
at::Tensor truth_of(const Bert&, const Batch& batch) {
  return batch.target.select(1, 1).flatten();
}

/// A task with cross entropy and accuracy.
template <class Net>
class ClassificationTask : public Task {
 public:
  template <class Options>
  explicit ClassificationTask(const Options& options) : net_(options) {}
  torch::nn::Module& module() override { return *net_; }
  at::Tensor loss(const Batch& batch) override {
    return at::cross_entropy_loss(scores_of(net_, batch), truth_of(net_, batch));
  }
  double metric(const Batch& batch) override {
    Evaluation evaluation(*net_);
    return accuracy(scores_of(net_, batch), truth_of(net_, batch));
  }
  std::string_view metric_name() const override { return "accuracy"; }

 protected:
  Net net_;
};

/// The task of Bp3d. The weights of the classes belong to the task and not to the module, because they are not trained.
class Bp3dTask final : public ClassificationTask<Bp3d> {
 public:
  Bp3dTask(const Bp3dOptions& options, const std::vector<double>& class_weights) : ClassificationTask(options) {
    if (!class_weights.empty() && std::ssize(class_weights) != options.classes)
      throw BadRequest(
          str("Bp3d: there are ", class_weights.size(), " class weights for ", options.classes, " classes"));
    weights_ = class_weights.empty() ? at::ones({options.classes}) : at::tensor(class_weights).to(at::kFloat);
  }
  at::Tensor loss(const Batch& batch) override {
    return weighted_cross_entropy(scores_of(net_, batch), batch.target, weights_.to(batch.target.device()));
  }

 private:
  at::Tensor weights_;
};

class AutoencoderTask final : public Task {
 public:
  explicit AutoencoderTask(const AutoencoderOptions& options) : net_(options) {}
  torch::nn::Module& module() override { return *net_; }
  at::Tensor loss(const Batch& batch) override { return reconstruction_loss(logits(batch), batch.input); }
  double metric(const Batch& batch) override {
    Evaluation evaluation(*net_);
    return explained_variance(at::sigmoid(logits(batch)), batch.input);
  }
  std::string_view metric_name() const override { return "explained_variance"; }

 private:
  /// Returns the logits in float32, because the loss is a sum over pixels.
  at::Tensor logits(const Batch& batch) { return net_->forward(batch.input).to(at::kFloat); }

  Autoencoder net_;
};

}  // namespace

std::unique_ptr<Task> make_task(std::string_view model, const TaskOptions& options) {
  if (model == "unet3d") return std::make_unique<UNet3dTask>(options.unet3d);
  if (model == "bp3d") return std::make_unique<Bp3dTask>(options.bp3d, options.bp3d_class_weights);
  if (model == "resnet50") return std::make_unique<ClassificationTask<ResNet50>>(options.resnet50);
  if (model == "bert-base") return std::make_unique<ClassificationTask<Bert>>(options.bert);
  if (model == "mlp") return std::make_unique<ClassificationTask<Mlp>>(options.mlp);
  if (model == "autoencoder") return std::make_unique<AutoencoderTask>(options.autoencoder);
  throw BadRequest(str("unknown model '", model, "'; known are: ", model_names()));
}

}  // namespace spillway::runtime
