// Data-parallel training in any loop: gradients are averaged over ranks while backward still runs.
//
//     $ mpirun -np 2 --bind-to none build/bin/gradients_beside_backward
//     2 ranks (2), buckets of 1.00 MiB by oneshot
//     step   0  loss 2.6402
//     step  20  loss 0.2543
//     step  40  loss 0.1203
//     step  60  loss 0.0737
//     the same weights as one rank on all cases, to 1e-12: yes
//
// It also runs with one rank, without mpirun.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdio>

#include "core/bytes.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/mpi.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gradient_allreduce.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kCases = 256;  // cases of each rank
constexpr int kSteps = 61;

/// Returns `rank`'s share of points on spirals, and the spiral arm of each point.
std::pair<at::Tensor, at::Tensor> cases(int64_t rank) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(11 + rank));
  const auto arm = at::arange(kCases).remainder(3).to(at::kDouble).unsqueeze(1);
  const auto t = at::rand({kCases, 1}, generator, at::kDouble) * 3 + 0.5;
  const auto angle = t * 2 + arm * 2.0944;
  return {at::cat({t * angle.cos(), t * angle.sin()}, 1), at::one_hot(arm.squeeze(1).to(at::kLong), 3).to(at::kDouble)};
}

nn::Sequential network() {
  at::manual_seed(1);
  nn::Sequential model(nn::Linear(2, 128), nn::Tanh(), nn::Linear(128, 128), nn::Tanh(), nn::Linear(128, 3));
  model->to(at::kDouble);
  return model;
}

at::Tensor loss_of(nn::Sequential& model, const at::Tensor& points, const at::Tensor& arms) {
  return (model->forward(points) - arms).square().sum(1).mean();
}

at::Tensor flat(const nn::Sequential& model) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : model->parameters()) all.push_back(parameter.detach().flatten());
  return at::cat(all);
}

at::Tensor train_on_all_ranks(const spillway::ddl::Comm& comm) {
  auto model = network();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  spillway::ddl::GradientAllreduce gradients(model->parameters(), comm);
  const auto [points, arms] = cases(comm->communicator->rank());
  const bool prints = comm->communicator->rank() == 0;
  if (prints)
    std::printf("%d ranks (%s), buckets of %s by %s\n", comm->communicator->size(),
                comm->communicator->levels().shape().c_str(), spillway::format_bytes(gradients.bucket_bytes()).c_str(),
                gradients.plan().name().c_str());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    auto loss = loss_of(model, points, arms);
    gradients.begin();
    loss.backward();
    gradients.finish();
    optimizer.step();
    loss = loss.detach();
    spillway::ddl::allreduce_({loss}, comm, spillway::ddl::Reduction::average);
    if (prints && step % 20 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item<double>());
  }
  return flat(model);
}

at::Tensor train_alone(int ranks) {
  auto model = network();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::vector<at::Tensor> points, arms;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto [own_points, own_arms] = cases(rank);
    points.push_back(own_points), arms.push_back(own_arms);
  }
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(model, at::cat(points), at::cat(arms)).backward();
    optimizer.step();
  }
  return flat(model);
}

void run(std::shared_ptr<spillway::ddl::Communicator> communicator) {
  // The measured costs of the links decide how gradients are cut and summed. No bit of the result depends on them.
  const auto comm = spillway::ddl::make_calibrated_comm(std::move(communicator));
  const at::Tensor weights = train_on_all_ranks(comm);
  if (comm->communicator->rank() != 0) return;
  const bool same = at::allclose(weights, train_alone(comm->communicator->size()), 0, 1e-12);
  std::printf("the same weights as one rank on all cases, to 1e-12: %s\n", same ? "yes" : "no");
}

}  // namespace

int main() {
  if (!spillway::ddl::launched_by_mpi()) {
    run(spillway::ddl::self_communicator());
    return 0;
  }
  spillway::ddl::MpiRuntime mpi;
  try {
    run(mpi.world());
  } catch (const spillway::ddl::CommError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    spillway::ddl::MpiRuntime::abort(4);
  }
}
