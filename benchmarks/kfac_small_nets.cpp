// The cost of K-FAC on small networks, where the overhead of each layer counts: a step of SGD with K-FAC beside one
// without, and what the phases take. Factors are of every step, decompositions of every tenth; exact ones are of all
// positions and keep all eigenvectors, others are the default's, also with layers of one shape in batches. A norm of
// the first preconditioned gradient lets two versions be compared.
//     build/bin/kfac_small_nets [STEPS [THREADS]]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/median.h"
#include "kfac/kfac.h"

namespace {

using namespace spillway;
using at::Tensor;
namespace nn = torch::nn;

nn::Sequential mlp() {
  return nn::Sequential(nn::Linear(512, 512), nn::ReLU(), nn::Linear(512, 512), nn::ReLU(), nn::Linear(512, 10));
}

nn::Sequential cnn() {
  const auto conv = [](int64_t in, int64_t out, int64_t stride) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).stride(stride));
  };
  return nn::Sequential(conv(3, 32, 1), nn::ReLU(), conv(32, 32, 1), nn::ReLU(), conv(32, 64, 2), nn::ReLU(),
                        conv(64, 64, 2), nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(64, 10));
}

// The convolutions of a ResNet-20 of 8 filters, without its shortcuts.
nn::Sequential deep_cnn() {
  nn::Sequential model;
  int64_t in = 1;
  for (const int64_t out : {8, 16, 32})
    for (int layer = 0; layer < 6; ++layer, in = out) {
      model->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).stride(in < out && in > 1 ? 2 : 1)));
      model->push_back(nn::ReLU());
    }
  model->push_back(nn::AdaptiveAvgPool2d(1));
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(32, 10));
  return model;
}

struct Network {
  std::string name;
  nn::Sequential model;
  Tensor input, target;
};

struct Measured {
  double median_ms = 0, mean_ms = 0, norm = 0;
};

// Trains for `steps`, with K-FAC where there is one.
Measured train(Network& network, kfac::Kfac* kfac, int steps) {
  torch::optim::SGD sgd(network.model->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  std::vector<double> ms;
  Measured all;
  for (int step = 0; step < steps; ++step) {
    const auto start = Clock::now();
    sgd.zero_grad();
    const Tensor loss = torch::nn::functional::cross_entropy(network.model->forward(network.input), network.target);
    if (kfac) kfac->watch(loss, network.input.size(0));
    loss.backward();
    if (kfac) kfac->step();
    sgd.step();
    ms.push_back(1e3 * seconds_since(start));
    all.mean_ms += ms.back() / steps;
    if (step > 0) continue;
    for (const Tensor& p : network.model->parameters()) all.norm += p.grad().square().sum().item<double>();
    all.norm = std::sqrt(all.norm);
  }
  all.median_ms = median(std::move(ms));
  return all;
}

Network network_of(const std::string& name) {
  torch::manual_seed(1);
  if (name == "mlp") return {name, mlp(), at::randn({128, 512}), at::randint(10, {128})};
  if (name == "cnn") return {name, cnn(), at::randn({32, 3, 32, 32}), at::randint(10, {32})};
  return {name, deep_cnn(), at::randn({128, 1, 28, 28}), at::randint(10, {128})};
}

struct Settings {
  std::string name;
  bool is_exact = false;
  int64_t batch_elements = 0;
};

void report(const std::string& name, const Settings& settings, int steps) {
  Network network = network_of(name);
  train(network, nullptr, steps / 2);
  const auto first_order = train(network, nullptr, steps);
  network = network_of(name);
  kfac::KfacOptions options{.lr = 1e-3,
                            .convention = kfac::Convention::kaisa,
                            .factor_interval = 1,
                            .inverse_interval = 10,
                            .burn_in = 0,
                            .batch_elements = settings.batch_elements};
  if (settings.is_exact) {
    options.factor_samples = kfac::FactorSamples::exact();
    options.eigen_rank = kfac::EigenRank::full();
  }
  kfac::Kfac kfac(*network.model, options);
  const auto second_order = train(network, &kfac, steps);
  const auto seconds = kfac.usage().seconds;
  const auto each = [&](double all) { return 1e3 * all / steps; };
  std::printf(
      "%-4s %-8s first order %7.2f ms, K-FAC %7.2f ms, median %7.2f ms; factors %.2f, decompositions %.2f, "
      "preconditioning %.2f ms a step\n     norm of the first preconditioned gradient %.9g\n",
      name.c_str(), settings.name.c_str(), first_order.mean_ms, second_order.mean_ms, second_order.median_ms,
      each(seconds.factor_compute), each(seconds.decompose), each(seconds.precondition), second_order.norm);
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::stoi(argv[1]) : 100;
  if (argc > 2) at::set_num_threads(std::stoi(argv[2]));
  constexpr int64_t kBatch = int64_t{1} << 18;
  const Settings all[] = {{"exact", true}, {"default"}, {"batches", false, kBatch}};
  for (const char* name : {"mlp", "cnn", "deep"})
    for (const Settings& settings : all) report(name, settings, steps);
}
