/// A small perceptron and the functions that run a step of K-FAC on it.
#pragma once
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "kfac/kfac.h"

namespace spillway::kfac {

inline torch::nn::Sequential small_mlp(at::ScalarType dtype = at::kDouble, uint64_t seed = 0) {
  namespace nn = torch::nn;
  torch::manual_seed(seed);
  nn::Sequential model(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 3));
  model->to(dtype);
  return model;
}

inline at::Tensor mean_loss(torch::nn::Sequential model, const at::Tensor& x) {
  return model->forward(x).pow(2).sum(1).mean();
}

inline std::vector<at::Tensor> gradients(const torch::nn::Module& model) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : model.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

inline void backward(Kfac& kfac, const at::Tensor& loss, int64_t batch) {
  kfac.watch(loss, batch);
  loss.backward();
}

}  // namespace spillway::kfac
