#include "runtime/training/weight_update.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>

#include <numeric>
#include <regex>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/comm.h"
#include "runtime/models/model_info.h"
#include "runtime/pipeline/pipeline_clock.h"
#include "runtime/training/gradient_exchange.h"
#include "runtime/training/kfac_state.h"
#include "runtime/training/part_options.h"
#include "runtime/training/whole_state.h"
#include "swap/optim/matrix_optimizer.h"
#include "swap/optim/optimizer.h"

namespace spillway::runtime {
namespace {

constexpr const char* kLossScale = "loss_scale";

/// Replaces the other ranks' sums with rank 0's.
void share_sums(Optimizer& optimizer, const ddl::Comm& comm) {
  std::vector<int64_t> everyone(comm->communicator->size());
  std::iota(everyone.begin(), everyone.end(), int64_t{0});
  optimizer.share_sums([comm, everyone](const at::Tensor& sums) { ddl::broadcast_({sums}, comm, 0, everyone); });
}

using Parameters = std::vector<at::Tensor>;
using ParameterSet = std::unordered_set<c10::TensorImpl*>;

std::unique_ptr<Optimizer> make_one(OptimizerKind kind, double lr, const OptimizerOptions& o,
                                    const Parameters& parameters) {
  const AdamOptions adam{.lr = lr, .weight_decay = o.weight_decay};
  switch (kind) {
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(
          parameters,
          SgdOptions{.lr = lr, .momentum = o.momentum, .nesterov = o.nesterov, .weight_decay = o.weight_decay});
    case OptimizerKind::lamb:
      return std::make_unique<Lamb>(parameters, LambOptions{.lr = lr, .weight_decay = o.weight_decay});
    case OptimizerKind::adamw:
      return std::make_unique<AdamW>(parameters, adam);
    case OptimizerKind::muon:
      return std::make_unique<Muon>(parameters, MuonOptions{.lr = lr, .weight_decay = o.weight_decay});
    case OptimizerKind::soap:
      return std::make_unique<Soap>(parameters, SoapOptions{.lr = lr, .weight_decay = o.weight_decay});
    case OptimizerKind::adam:
      break;
  }
  return std::make_unique<Adam>(parameters, adam);
}

ParameterSet preconditioned(const kfac::Kfac& kfac) {
  ParameterSet served;
  for (const kfac::Layer& layer : kfac.layers()) {
    served.insert(layer.weight.unsafeGetTensorImpl());
    if (layer.bias.defined()) served.insert(layer.bias.unsafeGetTensorImpl());
  }
  return served;
}

/// Returns the parameters of two or more dimensions that belong neither to an embedding nor to the output layer.
ParameterSet hidden_matrices(const torch::nn::Module& module, std::string_view output_layers) {
  const std::regex output{std::string(output_layers)};
  ParameterSet served;
  for (const auto& child : module.named_modules("", /*include_self=*/true)) {
    const bool is_output = !output_layers.empty() && std::regex_search(child.key(), output);
    if (is_output || child.value()->as<torch::nn::Embedding>()) continue;
    for (const at::Tensor& parameter : child.value()->parameters(/*recurse=*/false))
      if (parameter.dim() >= 2) served.insert(parameter.unsafeGetTensorImpl());
  }
  return served;
}

}  // namespace

WeightUpdate::WeightUpdate(const RunContext& context, torch::nn::Module& module, const PipelineExecutor* pipelined,
                           const LrSchedule& schedule, double grad_worker_frac, std::function<double()> lr)
    : context_(context), module_(module), pipelined_(pipelined) {
  const TrainOptions& options = context.options;
  if (options.kfac.enabled) make_kfac(schedule, grad_worker_frac, std::move(lr));
  optimizer_ = make_optimizer(options, module_, kfac());
  if (const ddl::Comm& same_weights = context.same_weights()) share_sums(*optimizer_, same_weights);
  if (options.precision.amp == Amp::fp16) scaler_.emplace(options.precision.loss_scaling, options_device(options));
}

void WeightUpdate::make_kfac(const LrSchedule& schedule, double grad_worker_frac, std::function<double()> lr) {
  kfac::KfacOptions kfac = kfac_options(context_.options, schedule, grad_worker_frac);
  kfac.layer_curvature = own_kfac_options(context_, module_).layer_curvature;
  // A step that fp16 leaves out is a step of the run but not of K-FAC, so K-FAC's lr follows the run's position.
  kfac.lr = kfac::StepSchedule([lr = std::move(lr)](int64_t) { return lr(); });
  kfac_.emplace(module_, std::move(kfac), context_.same_weights(), stages_of(context_));
  if (context_.clock) kfac_->refreshes().time_by([clock = context_.clock] { return clock->now(); });
}

void WeightUpdate::listen(MessageListener& listener) {
  if (kfac_) kfac_->refreshes().listen(listener);
}

void WeightUpdate::record(StepRecorder& recorder) {
  // Factors have a lane of their own, because they travel beside gradients.
  if (kfac_) kfac_->refreshes().observe(recorder.record_jobs("factors", "factors"));
}

std::string WeightUpdate::kind() const {
  return kfac_ ? std::string(kfac_->work().kind) : "plain";
}

void WeightUpdate::prepare(StepWork& work) {
  if (scaler_) work.loss_scale = scaler_->scale();
  if (kfac_)
    work.before_backward = [this](at::TensorList roots, const BackwardSamples& samples) {
      kfac_->watch_stage(roots, {samples.count, samples.again, samples.micro_batch});
    };
}

bool WeightUpdate::sends_in_backward() const {
  return kfac_ && kfac_->options().overlap_factors && context_.comm;
}

bool WeightUpdate::apply() {
  const double scale = scaler_ ? scaler_->scale() : 1;
  if (scaler_ && !scaler_->unscale(gradients_of(parameters()))) {
    if (kfac_) kfac_->discard();
    return false;
  }
  if (kfac_) kfac_->step(scale);
  if (context_.options.optimizer.clip_norm > 0) clip_gradients();
  optimizer_->step();
  return true;
}

void WeightUpdate::clip_gradients() {
  at::Tensor norms = optimizer_->gradient_norms();
  if (pipelined_) {
    // Each parameter of the model counts once, in the model's order, so that the norm's bits are those of one rank.
    std::vector<int64_t> numbers;
    for (const at::Tensor& parameter : parameters()) numbers.push_back(pipelined_->number_of(parameter));
    norms = gather_rows(*context_.pipeline->of_copy, norms.unsqueeze(1), numbers).squeeze(1);
  }
  optimizer_->clip_gradients(context_.options.optimizer.clip_norm, norms);
}

void WeightUpdate::discard() {
  optimizer_->zero_grad();
  if (kfac_) kfac_->discard();
}

void WeightUpdate::finish_refreshes() {
  if (kfac_) kfac_->refreshes().finish();
}

void WeightUpdate::add_state(std::vector<StateTensor>& state) const {
  const auto names = module_.named_parameters().keys();
  for (const OptimizerState& kind : optimizer_->state())
    for (size_t i = 0; i < names.size(); ++i)
      if (kind.tensors[i].defined()) state.emplace_back(str("optimizer/", kind.name, "/", names[i]), kind.tensors[i]);
  if (kfac_) add_kfac_state(*kfac_, context_, state);
  if (scaler_) state.emplace_back(kLossScale, scaler_->pack());
}

std::vector<StateTensor> WeightUpdate::counters() const {
  return kfac_ ? kfac_counters(*kfac_) : std::vector<StateTensor>();
}

void WeightUpdate::resume_counters(const std::vector<StateTensor>& counters) {
  resume_kfac(*kfac_, context_, counters);
}

void WeightUpdate::resume(const std::vector<StateTensor>& state) {
  if (kfac_) resume_kfac(*kfac_, context_, state);
  if (scaler_) scaler_->unpack(state.back().held);
}

std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& options, const torch::nn::Module& module,
                                          const kfac::Kfac* kfac) {
  const OptimizerOptions& o = options.optimizer;
  const Parameters all = module.parameters();
  if (!o.rest) return make_one(o.kind, o.lr, o, all);
  const ParameterSet served =
      kfac ? preconditioned(*kfac) : hidden_matrices(module, model_info(options.model.name).output);
  Parameters main, rest;
  for (const at::Tensor& parameter : all)
    (served.contains(parameter.unsafeGetTensorImpl()) ? main : rest).push_back(parameter);
  if (rest.empty()) return make_one(o.kind, o.lr, o, main);
  if (main.empty() && options.pipeline.ranks == 1)
    throw BadRequest(
        str("the model has no hidden matrices for ", name(o.kind), "; ", name(o.rest->kind), " can train it alone"));
  std::vector<std::unique_ptr<Optimizer>> parts;
  if (!main.empty()) parts.push_back(make_one(o.kind, o.lr, o, main));
  parts.push_back(make_one(o.rest->kind, o.rest->lr, o, rest));
  // A stage without hidden matrices follows the schedule of o.lr too.
  return std::make_unique<CombinedOptimizer>(all, std::move(parts), o.lr);
}

}  // namespace spillway::runtime
