#include <torch/nn/modules/embedding.h>

#include <regex>
#include <unordered_set>

#include "core/error.h"
#include "runtime/models/model_info.h"
#include "runtime/training/training_run.h"
#include "swap/optim/combined_optimizer.h"
#include "swap/optim/matrix_optimizer.h"

namespace spillway::runtime {
namespace {

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
