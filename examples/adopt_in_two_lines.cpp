// Adopts Spillway in an existing LibTorch training loop. The two lines are marked.
//
//     $ build/bin/adopt_in_two_lines
//     without a budget: losses 0.3960 … 0.3348, peak 32.0 MiB
//     with half of it:  losses 0.3960 … 0.3348, peak 15.8 MiB of 16.0 MiB, 472 MiB paged in
//     the same weights, bit for bit: yes
#include <ATen/Context.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>

#include <cstdio>

#include "core/bytes.h"
#include "swap/session.h"

namespace {

struct Outcome {
  double first_loss = 0, last_loss = 0;
  at::Tensor weights;
  spillway::SessionStats stats;
};

Outcome train(int64_t budget_bytes) {
  spillway::Session session({.budget_bytes = budget_bytes});  // line 1
  at::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Linear(256, 256));
    model->push_back(torch::nn::Tanh());
  }
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  at::Tensor input = at::randn({2048, 256}), target = at::tanh(input);

  Outcome outcome;
  for (int i = 0; i < 20; ++i) {
    auto step = session.step();  // line 2
    optimizer.zero_grad();
    at::Tensor loss = at::mse_loss(model->forward(input), target);
    loss.backward();
    optimizer.step();
    outcome.last_loss = loss.item<double>();
    if (i == 0) outcome.first_loss = outcome.last_loss;
  }
  outcome.stats = session.stats();
  for (const at::Tensor& p : model->parameters())
    outcome.weights = outcome.weights.defined()
                          ? at::cat(std::vector<at::Tensor>{outcome.weights, p.detach().flatten()})
                          : p.detach().flatten();
  return outcome;
}

}  // namespace

int main() {
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  const Outcome free = train(spillway::kUnlimitedBytes);
  const int64_t half = free.stats.peak_bytes / 2;
  const Outcome tight = train(half);
  std::printf("without a budget: losses %.4f … %.4f, peak %s\n", free.first_loss, free.last_loss,
              spillway::format_bytes(free.stats.peak_bytes).c_str());
  std::printf("with half of it:  losses %.4f … %.4f, peak %s of %s, %s paged in\n", tight.first_loss, tight.last_loss,
              spillway::format_bytes(tight.stats.peak_bytes).c_str(), spillway::format_bytes(half).c_str(),
              spillway::format_bytes(tight.stats.pager.bytes_in).c_str());
  const bool same = at::equal(free.weights, tight.weights);
  std::printf("the same weights, bit for bit: %s\n", same ? "yes" : "no");
  return same ? 0 : 1;
}
