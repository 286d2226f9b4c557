#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "ddl/comm/collectives.h"
#include "ddl/comm/thread_world.h"
#include "runtime/training/gradient_exchange.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "runtime/training/whole_state.h"
#include "tests/runtime/on_ranks.h"

namespace spillway {
using namespace runtime;
namespace {

std::string hash_of(char digit) {
  return std::string(64, digit);
}

}  // namespace

TEST(ReplicasTest, OfEqualWeightsPass) {
  on_ranks(3, [](const ddl::Comm& comm, int) { EXPECT_NO_THROW(require_equal_weights(comm, hash_of('a'), 7)); });
}

TEST(ReplicasTest, ThatDifferAreNamedOnEveryRank) {
  on_ranks(4, [](const ddl::Comm& comm, int rank) {
    try {
      require_equal_weights(comm, hash_of(rank == 1 || rank == 2 ? 'b' : 'a'), 7);
      ADD_FAILURE() << "rank " << rank << " goes on";
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      for (const char* part :
           {"after step 7", "all 4 ranks", "ranks 0 3 have aaaaaaaaaaaa…", "ranks 1 2 have bbbbbbbbbbbb…"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  });
}

/// Checks ranks of which one has far more to read than the other, as on a host whose disk is slow.
TEST(ReplicasTest, AreWaitedForWhileTheyReadTheirCases) {
  using namespace std::chrono_literals;
  ddl::ThreadWorld world({0, 0});
  std::vector<std::string> errors(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      TrainOptions options;
      options.model.name = "unet3d";
      options.data.source = rank == 0 ? "synthetic:80" : "synthetic:16";
      options.data.cases = 32;
      options.steps = 32;
      try {
        const auto comm = ddl::make_comm(world.communicator(rank, {.deadline = 800ms}));
        (void)make_context(options, comm);
        ddl::barrier(*comm->communicator);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  ranks.clear();
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(ReplicasTest, GetAGradientWhereSomeRankHasOneAndNoneWhereNobodyHas) {
  on_ranks(3, [](const ddl::Comm& comm, int rank) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 3; ++i) parameters.push_back(at::ones({2, 3}).requires_grad_());
    parameters[0].mutable_grad() = at::full({2, 3}, 5.f);
    if (rank == 1) parameters[2].mutable_grad() = at::full({2, 3}, 3.f);
    complete_gradients(parameters, comm);
    EXPECT_TRUE(parameters[0].grad().equal(at::full({2, 3}, 5.f)));
    EXPECT_FALSE(parameters[1].grad().defined());
    ASSERT_TRUE(parameters[2].grad().defined()) << rank;
    EXPECT_TRUE(parameters[2].grad().equal(at::full({2, 3}, rank == 1 ? 3.f : 0.f)));
  });
}

}  // namespace spillway
