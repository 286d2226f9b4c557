// Tests of K-FAC between processes. mpirun starts them, and every rank runs every test in the same order.
#include "ddl/comm/mpi.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "ddl/comm/collectives.h"
#include "ddl/torch/comm.h"
#include "tests/kfac/rank_training.h"

namespace spillway::kfac {
namespace {

/// The one runtime of this program. It is global because GoogleTest's tests take no arguments.
ddl::MpiRuntime* runtime = nullptr;

Outcome train_here(const KfacOptions& options, const Course& course = {}) {
  const auto comm = ddl::make_comm(runtime->world());
  return train(options, comm, comm->communicator->rank(), comm->communicator->size(), course);
}

}  // namespace

TEST(KfacMpiTest, GivesTheGradientOfOneProcessAndTheSameBitsUnderEveryExactStrategy) {
  const int64_t world = runtime->world()->size();
  const auto single = train(options_for(Strategy::hybrid), {}, 0, 1);
  const auto reference = train_here(options_for(Strategy::comm_opt));
  for (const auto& options : exact_strategies(world)) {
    const auto outcome = train_here(options);
    expect_close(outcome, single, 1e-3, describe(options, world));
    expect_bit_equal(reference, outcome, describe(options, world));
  }
}

TEST(KfacMpiTest, WeighsRanksByTheSamplesThatTheySaw) {
  std::vector<int64_t> samples(static_cast<size_t>(runtime->world()->size()), 0);
  samples.back() = 5;
  samples.front() = kGlobalBatch - 5;
  const auto single = train(options_for(Strategy::hybrid), {}, 0, 1);
  for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce})
    expect_close(train_here(options_for(strategy), {.samples = samples}), single, 1e-3, "uneven");
}

TEST(KfacMpiTest, GivesEveryRankTheSameBitsWithDpAndIn16Bits) {
  for (auto options : {options_for(Strategy::dp), options_for(Strategy::owner_reduce), options_for(Strategy::hybrid)}) {
    options.factor_dtype = options.strategy == Strategy::dp ? FactorDtype::fp32 : FactorDtype::bf16;
    const auto outcome = train_here(options);
    const auto comm = ddl::make_comm(runtime->world());
    std::vector<int64_t> everyone(static_cast<size_t>(comm->communicator->size()));
    std::iota(everyone.begin(), everyone.end(), int64_t{0});
    for (const auto& gradient : outcome.gradients) {
      const auto first = gradient.clone();
      ddl::broadcast_({first}, comm, 0, everyone);
      EXPECT_TRUE(gradient.equal(first)) << name(options.strategy);
    }
  }
}

TEST(KfacMpiTest, ReducesFactorsBesideBackwardToTheSameBits) {
  for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce})
    for (auto dtype : {FactorDtype::fp32, FactorDtype::bf16}) {
      auto options = options_for(strategy);
      options.factor_dtype = dtype;
      const auto after = train_here(options);
      options.overlap_factors = true;
      expect_bit_equal(after, train_here(options), std::string(name(strategy)));
    }
}

}  // namespace spillway::kfac

int main(int argc, char** argv) {
  namespace ddl = spillway::ddl;
  ::testing::InitGoogleTest(&argc, argv);
  ddl::MpiRuntime mpi;
  spillway::kfac::runtime = &mpi;
  at::set_num_threads(1);
  const auto comm = mpi.world();
  if (comm->rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int failed = RUN_ALL_TESTS();
  ddl::barrier(*comm);
  return failed;
}
