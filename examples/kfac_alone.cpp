// K-FAC in a plain LibTorch loop: three lines more than SGD. No budget, no ranks.
//
// Expected output (last digits differ between machines):
//   3 layers, 31.4 KiB of state
//   step   0  loss 4.058
//   step  20  loss 1.285
//   step  40  loss 0.262
//   step  60  loss 0.052
//   step  80  loss 0.015
//   step 100  loss 0.014
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "core/bytes.h"
#include "kfac/kfac.h"

int main() {
  torch::manual_seed(1);
  // A small regression whose inputs differ in scale by 100: hard for SGD, ordinary for K-FAC.
  const auto scale = at::logspace(-1, 1, 8);
  const auto x = at::randn({256, 8}) * scale, y = (x / scale).sin().sum(1, true);

  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  const double lr = 0.1;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  spillway::Kfac kfac(*model, {.lr = lr});
  std::printf("%zu layers, %s of state\n", kfac.layers().size(),
              spillway::format_bytes(kfac.usage().bytes.held()).c_str());

  for (int step = 0; step <= 100; ++step) {
    optimizer.zero_grad();
    const auto loss = (model->forward(x) - y).pow(2).mean();
    kfac.watch(loss, x.size(0));  // the loss is a mean over this many samples
    loss.backward();
    kfac.step();  // gradients become natural gradients
    optimizer.step();
    if (step % 20 == 0) std::printf("step %3d  loss %.3f\n", step, loss.item<double>());
  }
}
