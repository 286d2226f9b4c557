#include "runtime/task.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "runtime/losses.h"

namespace spillway {
namespace {

/// Evaluation mode without gradients while it lives.
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

class SegmentationTask : public Task {
 public:
  explicit SegmentationTask(const UNet3dOptions& options) : net_(options) {}
  torch::nn::Module& module() override { return *net_; }
  at::Tensor loss(const Batch& batch) override { return soft_dice_loss(net_->forward(batch.input), batch.target); }
  double metric(const Batch& batch) override {
    Evaluation evaluation(*net_);
    return hard_dice(net_->forward(batch.input), batch.target).mean().item<double>();
  }
  std::string_view metric_name() const override { return "dice"; }

 private:
  UNet3d net_;
};

class ClassificationTask : public Task {
 public:
  explicit ClassificationTask(const MlpOptions& options) : net_(options) {}
  torch::nn::Module& module() override { return *net_; }
  at::Tensor loss(const Batch& batch) override {
    return at::cross_entropy_loss(net_->forward(batch.input), batch.target);
  }
  double metric(const Batch& batch) override {
    Evaluation evaluation(*net_);
    return accuracy(net_->forward(batch.input), batch.target);
  }
  std::string_view metric_name() const override { return "accuracy"; }

 private:
  Mlp net_;
};

}  // namespace

std::unique_ptr<Task> make_task(std::string_view model, const TaskOptions& options) {
  if (model == "unet3d") return std::make_unique<SegmentationTask>(options.unet3d);
  if (model == "mlp") return std::make_unique<ClassificationTask>(options.mlp);
  throw BadRequest(str("unknown model '", model, "'; known are: unet3d, mlp"));
}

}  // namespace spillway
