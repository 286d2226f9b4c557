// K-FAC over ranks, under a byte budget: an autoencoder whose factors and eigenbases are paged like all other tensors.
//
//     $ mpirun -np 2 --bind-to none build/bin/kfac_two_ranks
//     2 ranks, 8 layers; this rank holds 908 KiB of K-FAC state; budget 2.50 MiB, half of what one step needs
//     step   0  loss 9.0362
//     step  20  loss 4.1083
//     step  40  loss 1.7219
//     step  60  loss 0.8394
//     peak 2.50 MiB, 239 MiB paged in; the same weights as without a budget, bit for bit: yes
//
// It also runs with one rank, without mpirun.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "core/bytes.h"
#include "ddl/comm/mpi.h"
#include "ddl/torch/comm.h"
#include "kfac/kfac.h"
#include "swap/session.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kBatch = 512;  // samples of each rank
constexpr double kLr = 0.1;
constexpr int kSteps = 61;

/// Returns curves y(t) of 64 points. Each curve has a phase and two frequencies of its own.
at::Tensor curves(int64_t rank) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(7 + rank));
  const auto t = at::linspace(0, 1, 64);
  const auto draw = [&](double most) { return at::rand({kBatch, 1}, generator) * most; };
  return (t * draw(20) + draw(6)).sin() * (t * draw(8)).cos();
}

nn::Sequential autoencoder() {
  at::manual_seed(1);
  nn::Sequential model;
  const std::vector<int64_t> widths{64, 256, 128, 64, 8, 64, 128, 256, 64};
  for (size_t i = 1; i < widths.size(); ++i) {
    model->push_back(nn::Linear(widths[i - 1], widths[i]));
    if (i + 1 < widths.size()) model->push_back(nn::Tanh());
  }
  return model;
}

struct Outcome {
  at::Tensor weights;
  spillway::SessionStats stats;
};

Outcome train(int64_t budget_bytes, const spillway::ddl::Comm& comm, bool print) {
  spillway::Session session({.budget_bytes = budget_bytes});
  auto model = autoencoder();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(kLr).momentum(0.9));
  // Each layer is preconditioned by one rank, which is the only one that holds the layer's eigenbases.
  const int64_t ranks = comm ? comm->communicator->size() : 1;
  spillway::Kfac kfac(*model, {.grad_worker_frac = 1.0 / static_cast<double>(ranks), .lr = kLr}, comm);
  if (print)
    std::printf("%lld ranks, %zu layers; this rank holds %s of K-FAC state; budget %s, half of what one step needs\n",
                static_cast<long long>(ranks), kfac.layers().size(),
                spillway::format_bytes(kfac.usage().bytes.held()).c_str(),
                spillway::format_bytes(budget_bytes).c_str());
  const auto x = curves(comm ? comm->communicator->rank() : 0);

  for (int i = 0; i < kSteps; ++i) {
    auto step = session.step(kfac.work().kind);  // steps of a kind are planned together
    optimizer.zero_grad();
    const auto loss = (model->forward(x) - x).pow(2).sum(1).mean() / 2;
    kfac.watch(loss, kBatch);
    loss.backward();
    for (const auto& parameter : model->parameters())  // one by one, because they need not be resident together
      if (comm) spillway::ddl::allreduce_({parameter.mutable_grad()}, comm, spillway::ddl::Reduction::average);
    kfac.step();
    optimizer.step();
    if (print && i % 20 == 0) std::printf("step %3d  loss %.4f\n", i, loss.item<double>());
  }
  Outcome outcome;
  outcome.stats = session.stats();
  std::vector<at::Tensor> weights;
  for (const auto& parameter : model->parameters()) weights.push_back(parameter.detach().flatten());
  outcome.weights = at::cat(weights);
  return outcome;
}

void run(const spillway::ddl::Comm& comm) {
  const bool print = !comm || comm->communicator->rank() == 0;
  const Outcome free = train(spillway::kUnlimitedBytes, comm, false);
  const Outcome tight = train(free.stats.peak_bytes / 2, comm, print);
  if (print)
    std::printf("peak %s, %s paged in; the same weights as without a budget, bit for bit: %s\n",
                spillway::format_bytes(tight.stats.peak_bytes).c_str(),
                spillway::format_bytes(tight.stats.pager.bytes_in).c_str(),
                tight.weights.equal(free.weights) ? "yes" : "NO");
}

}  // namespace

int main() {
  if (!spillway::ddl::launched_by_mpi()) {
    run({});
    return 0;
  }
  spillway::ddl::MpiRuntime mpi;
  try {
    run(spillway::ddl::make_comm(mpi.world()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    spillway::ddl::MpiRuntime::abort(1);
  }
}
