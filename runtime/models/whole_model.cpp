#include <ATen/ATen.h>

#include <utility>

#include "runtime/models/trainable_model.h"
#include "runtime/passes/autocast.h"

namespace spillway::runtime {
namespace {

class WholeModel final : public TrainableModel {
 public:
  explicit WholeModel(std::unique_ptr<Task> task) : task_(std::move(task)) {}
  torch::nn::Module& module() override { return task_->module(); }
  std::string_view metric_name() const override { return task_->metric_name(); }

  at::Tensor learn(const StepWork& work) override {
    at::Tensor sum;
    for (int64_t i = 0; i < work.micro_batches; ++i) {
      const at::Tensor loss = learn(work, i);
      sum = i == 0 ? loss : sum + loss;
    }
    return sum;
  }

  std::optional<double> loss(const StepWork& work) override {
    const at::NoGradGuard no_grad;
    double sum = 0;
    for (int64_t i = 0; i < work.micro_batches; ++i) {
      const Batch batch = work.batch(i);
      const Autocast autocast(work.amp, batch.input.device().type());
      sum += task_->loss(batch).item<double>() / static_cast<double>(work.micro_batches);
    }
    return sum;
  }

  std::optional<double> metric(const Batch& batch, Amp amp) override {
    const Autocast autocast(amp, batch.input.device().type());
    return task_->metric(batch);
  }

 private:
  /// Returns a micro-batch's share of the loss.
  at::Tensor forward(const StepWork& work, const Batch& batch) {
    at::Tensor loss;
    {
      const Autocast autocast(work.amp, batch.input.device().type());
      loss = task_->loss(batch);
    }
    return work.micro_batches > 1 ? loss / work.micro_batches : loss;
  }

  at::Tensor learn(const StepWork& work, int64_t micro_batch) {
    const Batch batch = work.batch(micro_batch);
    const at::Tensor loss = forward(work, batch);
    const at::Tensor scaled = work.loss_scale != 1 ? loss * work.loss_scale : loss;
    if (work.before_backward)
      work.before_backward({scaled}, {.count = batch.input.size(0), .micro_batch = micro_batch});
    if (work.before_last_backward && micro_batch + 1 == work.micro_batches) work.before_last_backward();
    scaled.backward();
    return loss.detach();
  }

  const std::unique_ptr<Task> task_;
};

}  // namespace

std::unique_ptr<TrainableModel> whole_model(std::unique_ptr<Task> task) {
  return std::make_unique<WholeModel>(std::move(task));
}

}  // namespace spillway::runtime
