// The error that sampled positions bring into a preconditioned gradient, beside the difference between two batches. For
// each layer: the relative difference of V = F⁻¹∇ where F comes from a lattice of positions, from `auto`'s or another
// number of them, and where F comes from all positions of another case. ∇ is the first case's.
//     build/bin/factor_samples [MODEL [DATA [exact|auto|N [UPDATES]]]]
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "core/median.h"
#include "kfac/kfac.h"
#include "runtime/data/dataset.h"
#include "runtime/data/open_dataset.h"
#include "runtime/models/task.h"

namespace {

using namespace spillway;
using at::Tensor;

struct Factors {
  kfac::FactorSamples samples;
  runtime::Batch batch;
};

// Returns the gradients of the layers' weights under the factors of `updates` backward passes.
std::vector<Tensor> preconditioned(runtime::Task& task, const std::vector<Tensor>& gradients, const Factors& factors,
                                   int updates) {
  kfac::Kfac kfac(task.module(), {.factor_interval = 1,
                                  .inverse_interval = 1,
                                  .burn_in = 0,
                                  .factor_samples = factors.samples,
                                  .kl_clip = std::numeric_limits<double>::infinity()});
  const auto parameters = task.module().parameters();
  for (int i = 0; i < updates; ++i) {
    const Tensor loss = task.loss(factors.batch);
    kfac.watch(loss, factors.batch.input.size(0));
    loss.backward();
    at::NoGradGuard no_grad;
    for (size_t p = 0; p < parameters.size(); ++p)
      if (parameters[p].grad().defined()) parameters[p].mutable_grad() = gradients[p].clone();
    kfac.step();
  }
  std::vector<Tensor> weights;
  for (const auto& layer : kfac.layers()) weights.push_back(layer.weight.grad().clone());
  return weights;
}

double difference(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return argc > i ? argv[i] : otherwise; };
  const std::string model = argument(1, "unet3d"), source = argument(2, "synthetic:64");
  const kfac::FactorSamples samples = kfac::parse_factor_samples(argument(3, "auto"));
  const int updates = std::stoi(argument(4, "1"));
  torch::manual_seed(1);
  const auto task = runtime::make_task(model, {.unet3d = {.filters = 8}});
  task->module().eval();
  const auto data = runtime::open_dataset(model, source);
  const runtime::Batch first = data->at(0), second = data->at(1);

  task->loss(first).backward();
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : task->module().parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
  const auto all = kfac::FactorSamples::exact();
  const auto exact = preconditioned(*task, gradients, {all, first}, updates);
  const auto sampled = preconditioned(*task, gradients, {samples, first}, updates);
  const auto other = preconditioned(*task, gradients, {all, second}, updates);

  const kfac::Kfac kfac(task->module());
  std::vector<double> errors, differences;
  std::printf("%-40s %6s %10s %10s\n", "layer", "side", "sampled", "other case");
  for (size_t i = 0; i < exact.size(); ++i) {
    errors.push_back(difference(sampled[i], exact[i]));
    differences.push_back(difference(other[i], exact[i]));
    std::printf("%-40s %6lld %10.4f %10.4f\n", kfac.layers()[i].shape.name.c_str(),
                static_cast<long long>(kfac.layers()[i].shape.factors().front().side), errors[i], differences[i]);
  }
  std::printf("%-40s %6s %10.4f %10.4f\n", "median", "", median(errors), median(differences));
}
