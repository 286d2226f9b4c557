#include "runtime/training/gradient_exchange.h"

#include <ATen/ATen.h>

#include <chrono>
#include <span>

#include "core/clock.h"
#include "ddl/comm/collectives.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gpu_backend.h"
#include "runtime/training/part_options.h"

namespace spillway::runtime {

GradientExchange::GradientExchange(const RunContext& context, const torch::nn::Module& module,
                                   const std::vector<at::Tensor>& parameters, PipelineExecutor* pipelined)
    : context_(context), module_(module), parameters_(parameters), pipelined_(pipelined) {
  const ddl::Comm& same_weights = context.same_weights();
  const c10::Device device = options_device(context.options);
  // Gradients that are reduced beside backward are staged on the host.
  const bool uses_nccl = same_weights && device.is_cuda() && same_weights->gpus->levels(device);
  if (same_weights && context.options.gradients.overlap && !uses_nccl)
    overlapped_.emplace(parameters_, same_weights, gradient_options(context.options));
}

void GradientExchange::listen(MessageListener& listener) {
  if (overlapped_) overlapped_->listen(listener);
}

void GradientExchange::record(StepRecorder& recorder) {
  if (overlapped_) overlapped_->observe(recorder.record_jobs("gradients", "communication"));
}

std::function<void()> GradientExchange::before_last_backward() {
  if (!overlapped_) return {};
  return [this] { overlapped_->begin(); };
}

std::vector<at::Tensor> GradientExchange::average_gradients() {
  const ddl::Comm& same_weights = context_.same_weights();
  if (overlapped_) {
    if (!overlapped_->begun()) overlapped_->begin();
    overlapped_->finish();
  } else if (same_weights) {
    complete_gradients(parameters_, same_weights);
  }
  std::vector<at::Tensor> gradients = gradients_of(parameters_);
  bytes_ = 0;
  for (const at::Tensor& gradient : gradients) bytes_ += gradient.nbytes();
  if (overlapped_) gradients.clear();
  return gradients;
}

PassesOutcome GradientExchange::join(const at::Tensor& loss, const PassesOutcome& own) {
  at::NoGradGuard no_grad;
  const ddl::Comm& same_weights = context_.same_weights();
  std::vector<at::Tensor> tensors = average_gradients();
  // Running statistics are averaged too, because every rank saw other cases and all ranks must stay the same.
  for (const at::Tensor& buffer : module_.buffers())
    if (buffer.is_floating_point()) tensors.push_back(buffer);
  const at::TensorOptions type = at::TensorOptions(options_device(context_.options)).dtype(at::kFloat);
  const at::Tensor mean = loss.defined() ? loss.detach().to(at::kFloat) : at::zeros({}, type);
  const auto flag = [&](bool set) { return at::scalar_tensor(set ? 1.f : 0.f, mean.options()); };
  const at::Tensor status = at::stack({mean, flag(own.requested.stop), flag(own.requested.checkpoint), flag(own.left)});
  const auto start = Clock::now();
  if (!pipelined_) tensors.push_back(status);
  if (same_weights) ddl::allreduce_(tensors, same_weights, ddl::Reduction::average);
  if (pipelined_) {
    pipelined_->sum_shared_gradients();
    // One rank of each copy has a loss.
    ddl::allreduce_({status}, context_.comm, ddl::Reduction::sum);
    status.div_(context_.copies());
  }
  after_backward_seconds_ += seconds_since(start);
  const at::Tensor joined = status.cpu();
  return {.loss = joined[0].item<double>(),
          .requested = {joined[1].item<float>() > 0, joined[2].item<float>() > 0},
          .left = joined[3].item<float>() > 0};
}

double GradientExchange::seconds() const {
  return after_backward_seconds_ +
         (overlapped_ ? std::chrono::duration<double>(overlapped_->totals().busy).count() : 0);
}

double GradientExchange::exposed_seconds() const {
  return after_backward_seconds_ +
         (overlapped_ ? std::chrono::duration<double>(overlapped_->totals().exposed).count() : 0);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) all.push_back(parameter.grad());
  return all;
}

void complete_gradients(const std::vector<at::Tensor>& parameters, const ddl::Comm& comm) {
  std::vector<char> own;
  for (const at::Tensor& parameter : parameters) own.push_back(parameter.grad().defined());
  std::vector<char> all(own.size() * comm->communicator->size());
  ddl::allgather(*comm->communicator, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (own[i]) continue;
    bool reached = false;
    for (size_t at = i; at < all.size(); at += own.size()) reached |= all[at] != 0;
    if (reached) parameters[i].mutable_grad() = at::zeros_like(parameters[i]);
  }
}

}  // namespace spillway::runtime
