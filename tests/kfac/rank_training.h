/// A small data-parallel training that any transport can run, for tests of K-FAC on several ranks.
#pragma once
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <mutex>
#include <thread>

#include "ddl/comm/thread_world.h"
#include "ddl/torch/comm.h"
#include "kfac/kfac.h"
#include "kfac/plan/assignment.h"

namespace spillway::kfac {

constexpr int64_t kGlobalBatch = 12;

struct Outcome {
  std::vector<at::Tensor> gradients;  ///< gradients of the last step
  std::vector<double> losses;         ///< losses of this rank's samples
  at::Tensor largest_curvature;       ///< Kfac's
  FactorBytes bytes;
  std::vector<LayerShape> shapes;
  std::vector<Assignment> assignments;
  KfacOptions options;
};

// Builds the model. All ranks build theirs under one lock, because the threads share LibTorch's default generator.
inline torch::nn::Sequential small_model() {
  namespace nn = torch::nn;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  torch::manual_seed(5);
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)), nn::Tanh(),
                        nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(2).bias(false)), nn::Tanh(), nn::Flatten(),
                        nn::Linear(4 * 3 * 3, 3));
}

inline at::Tensor global_batch() {
  return at::arange(kGlobalBatch * 2 * 25, at::kFloat).mul(0.37).sin().view({-1, 2, 5, 5});
}

/// The options of a training, except its K-FAC options.
struct Course {
  int steps = 4;
  double lr = 0.1;
  std::vector<int64_t> samples = {};  ///< samples of each rank; empty: equal numbers
  bool average_gradients = true;
  std::function<void(int step)> after_step = nullptr;
};

/// Returns rank `rank`'s share of the global batch, undefined when the share is empty.
inline at::Tensor share_of(const Course& course, int64_t rank, int64_t world) {
  auto samples = course.samples;
  if (samples.empty()) samples.assign(static_cast<size_t>(world), kGlobalBatch / world);
  int64_t begin = 0;
  for (int64_t r = 0; r < rank; ++r) begin += samples[static_cast<size_t>(r)];
  return global_batch().narrow(0, begin, samples[static_cast<size_t>(rank)]);
}

/// Makes the gradient of the mean over all samples from the gradients of each rank's mean.
inline void average_gradients(const torch::nn::Module& model, const ddl::Comm& comm, double weight) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model.parameters()) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    gradients.push_back(parameter.grad().mul_(weight));
  }
  if (comm) ddl::allreduce_(gradients, comm, ddl::Reduction::average);
}

/// Takes a step on this rank's share `x` of a batch.
inline void take_step(torch::nn::Sequential& model, Kfac& kfac, torch::optim::Optimizer& optimizer, const at::Tensor& x,
                      const ddl::Comm& comm) {
  optimizer.zero_grad();
  const auto loss = model->forward(x).pow(2).sum(1).mean();
  kfac.watch(loss, x.size(0));
  loss.backward();
  average_gradients(*model, comm, 1);
  kfac.step();
  optimizer.step();
}

inline Outcome train(const KfacOptions& options, const ddl::Comm& comm, int64_t rank, int64_t world,
                     const Course& course = {}) {
  auto model = small_model();
  Kfac kfac(*model, options, comm);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(course.lr));
  const auto x = share_of(course, rank, world);
  const double weight = static_cast<double>(x.size(0) * world) / static_cast<double>(kGlobalBatch);
  Outcome outcome;
  for (int i = 0; i < course.steps; ++i) {
    sgd.zero_grad();
    at::Tensor loss;
    if (x.size(0) > 0) loss = model->forward(x).pow(2).sum(1).mean();
    kfac.watch(loss, x.size(0));
    if (loss.defined()) loss.backward();
    if (loss.defined()) outcome.losses.push_back(loss.item<double>());
    if (course.average_gradients) average_gradients(*model, comm, course.samples.empty() ? 1 : weight);
    kfac.step();
    sgd.step();
    if (course.after_step) course.after_step(i);
  }
  outcome.largest_curvature = kfac.state().largest_curvature();
  outcome.bytes = kfac.usage().bytes;
  outcome.assignments = kfac.state().assignments();
  outcome.options = kfac.options();
  for (const auto& parameter : model->parameters()) outcome.gradients.push_back(parameter.grad().clone());
  for (const auto& layer : kfac.layers()) outcome.shapes.push_back(layer.shape);
  return outcome;
}

/// Plays `body` on each communicator's rank, with a thread and a core each. Throws the error of the lowest rank that
/// threw.
inline void on_communicators(const std::vector<std::shared_ptr<ddl::Communicator>>& communicators,
                             const std::function<void(const ddl::Comm&, int64_t rank)>& body) {
  const int threads_before = at::get_num_threads();
  std::vector<std::exception_ptr> errors(communicators.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < communicators.size(); ++rank)
    ranks.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);  // splits every sum in the same way on every rank
        body(ddl::make_comm(communicators[rank]), static_cast<int64_t>(rank));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (auto& thread : ranks) thread.join();
  at::set_num_threads(threads_before);
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Plays `body` on `hosts.size()` threads of a new world, with a core each.
inline void on_threads(const std::vector<int>& hosts, const std::function<void(const ddl::Comm&, int64_t rank)>& body) {
  ddl::ThreadWorld threads(hosts);
  std::vector<std::shared_ptr<ddl::Communicator>> communicators;
  for (int rank = 0; rank < threads.size(); ++rank) communicators.push_back(threads.communicator(rank));
  on_communicators(communicators, body);
}

/// Trains on the ranks of a new world, and returns every rank's outcome.
inline std::vector<Outcome> train_on(const std::vector<int>& hosts, const KfacOptions& options,
                                     const Course& course = {}) {
  std::vector<Outcome> outcomes(hosts.size());
  on_threads(hosts, [&](const ddl::Comm& comm, int64_t rank) {
    outcomes[static_cast<size_t>(rank)] = train(options, comm, rank, static_cast<int64_t>(hosts.size()), course);
  });
  return outcomes;
}
inline std::vector<Outcome> train_on(int world, const KfacOptions& options, const Course& course = {}) {
  return train_on(std::vector<int>(static_cast<size_t>(world), 0), options, course);
}

inline void expect_bit_equal(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) EXPECT_TRUE(a.gradients[i].equal(b.gradients[i])) << what << ' ' << i;
}

inline void expect_close(const Outcome& a, const Outcome& expected, double tolerance, const std::string& what) {
  for (size_t i = 0; i < expected.gradients.size(); ++i)
    EXPECT_TRUE(at::allclose(a.gradients[i], expected.gradients[i], tolerance,
                             tolerance / 10 * expected.gradients[i].abs().max().item<double>()))
        << what << ", parameter " << i;
}

inline KfacOptions options_for(Strategy strategy, double fraction = 1, ConvFactors form = ConvFactors::full) {
  return {.strategy = strategy,
          .grad_worker_frac = fraction,
          .factor_interval = 2,
          .inverse_interval = 2,
          .conv_factors = form,
          .max_factor_dim = form == ConvFactors::block ? 10 : 1024};
}

/// Returns every exact strategy, with a fraction that `world` ranks can have.
inline std::vector<KfacOptions> exact_strategies(int64_t world, ConvFactors form = ConvFactors::full) {
  std::vector<KfacOptions> all{options_for(Strategy::comm_opt, 1, form), options_for(Strategy::mem_opt, 1, form),
                               options_for(Strategy::automatic, 1, form)};
  for (int64_t workers = 1; workers <= world; ++workers)
    for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce})
      all.push_back(options_for(strategy, static_cast<double>(workers) / static_cast<double>(world), form));
  return all;
}

inline std::string describe(const KfacOptions& options, int64_t world) {
  return std::string(name(options.strategy)) + " f=" + std::to_string(options.grad_worker_frac) + " on " +
         std::to_string(world) + " ranks";
}

}  // namespace spillway::kfac
