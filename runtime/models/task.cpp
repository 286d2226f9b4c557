#include "runtime/models/task.h"

#include <ATen/ATen.h>

#include <utility>

#include "core/error.h"
#include "runtime/models/losses.h"
#include "runtime/models/model_info.h"

namespace spillway::runtime {
namespace {

/// The soft Dice loss of a segmentation. Both figures are of the output in float32, because sums over voxels need its
/// digits even where the network computes with fewer.
class Segmentation final : public Objective {
 public:
  at::Tensor loss(const at::Tensor& output, const Batch& batch) const override {
    return soft_dice_loss(output.to(at::kFloat), batch.target);
  }
  double metric(const at::Tensor& output, const Batch& batch) const override {
    return hard_dice(output.to(at::kFloat), batch.target).mean().item<double>();
  }
  std::string_view metric_name() const override { return "dice"; }
};

class Classification : public Objective {
 public:
  at::Tensor loss(const at::Tensor& output, const Batch& batch) const override {
    return at::cross_entropy_loss(output, batch.target);
  }
  double metric(const at::Tensor& output, const Batch& batch) const override { return accuracy(output, batch.target); }
  std::string_view metric_name() const override { return "accuracy"; }
};

/// The classification of voxels, with a weight for each class.
class WeightedClassification final : public Classification {
 public:
  explicit WeightedClassification(at::Tensor weights) : weights_(std::move(weights)) {}
  at::Tensor loss(const at::Tensor& output, const Batch& batch) const override {
    return weighted_cross_entropy(output, batch.target, weights_.to(batch.target.device()));
  }

 private:
  const at::Tensor weights_;
};

/// The classification of the words to guess. The target is [B, 2, K]: places in the sequence and the words that belong
/// there. The output is [B, K, vocabulary].
class WordGuessing final : public Objective {
 public:
  at::Tensor loss(const at::Tensor& output, const Batch& batch) const override {
    return at::cross_entropy_loss(output.flatten(0, 1), words(batch));
  }
  double metric(const at::Tensor& output, const Batch& batch) const override {
    return accuracy(output.flatten(0, 1), words(batch));
  }
  std::string_view metric_name() const override { return "accuracy"; }

 private:
  static at::Tensor words(const Batch& batch) { return batch.target.select(1, 1).flatten(); }
};

/// The reconstruction of the input from logits. Both figures are of logits in float32, because they are sums over
/// pixels.
class Reconstruction final : public Objective {
 public:
  at::Tensor loss(const at::Tensor& output, const Batch& batch) const override {
    return reconstruction_loss(output.to(at::kFloat), batch.input);
  }
  double metric(const at::Tensor& output, const Batch& batch) const override {
    return explained_variance(at::sigmoid(output.to(at::kFloat)), batch.input);
  }
  std::string_view metric_name() const override { return "explained_variance"; }
};

at::Tensor output_of(Bert& net, const Batch& batch) {
  return net->forward(batch.input, batch.target.select(1, 0));
}
template <class Net>
at::Tensor output_of(Net& net, const Batch& batch) {
  return net->forward(batch.input);
}

template <class Net>
class NetTask final : public Task {
 public:
  NetTask(Net net, std::shared_ptr<const Objective> objective)
      : net_(std::move(net)), objective_(std::move(objective)) {}
  torch::nn::Module& module() override { return *net_; }
  at::Tensor forward(const Batch& batch) override { return output_of(net_, batch); }
  std::vector<Part> parts() const override { return net_->parts(); }
  std::shared_ptr<const Objective> objective() const override { return objective_; }

 private:
  Net net_;
  const std::shared_ptr<const Objective> objective_;
};

template <class Net>
std::unique_ptr<Task> make(Net net, std::shared_ptr<const Objective> objective) {
  return std::make_unique<NetTask<Net>>(std::move(net), std::move(objective));
}

/// Returns the objective of bp3d. The weights of the classes belong to it and not to the module, because they are not
/// trained.
std::shared_ptr<const Objective> classification_of_voxels(int64_t classes, const std::vector<double>& class_weights) {
  if (!class_weights.empty() && std::ssize(class_weights) != classes)
    throw BadRequest(str("Bp3d: there are ", class_weights.size(), " class weights for ", classes, " classes"));
  return std::make_shared<WeightedClassification>(class_weights.empty() ? at::ones({classes})
                                                                        : at::tensor(class_weights).to(at::kFloat));
}

}  // namespace

double Task::metric(const Batch& batch) {
  const Evaluation evaluation(module());
  return objective()->metric(forward(batch), batch);
}

std::unique_ptr<Task> make_task(std::string_view model, const TaskOptions& options) {
  const auto classification = std::make_shared<Classification>();
  if (model == "unet3d") return make(UNet3d(options.unet3d), std::make_shared<Segmentation>());
  if (model == "bp3d")
    return make(Bp3d(options.bp3d), classification_of_voxels(options.bp3d.classes, options.bp3d_class_weights));
  if (model == "resnet50") return make(ResNet50(options.resnet50), classification);
  if (model == "bert-base") return make(Bert(options.bert), std::make_shared<WordGuessing>());
  if (model == "mlp") return make(Mlp(options.mlp), classification);
  if (model == "autoencoder") return make(Autoencoder(options.autoencoder), std::make_shared<Reconstruction>());
  throw BadRequest(str("unknown model '", model, "'; known are: ", model_names()));
}

}  // namespace spillway::runtime
