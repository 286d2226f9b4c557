// Tests of the ways that `spillway bench allreduce --device cuda` compares, on CPU tensors and a double of NCCL.
#include "benchmarks/allreduce/gpu.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "benchmarks/allreduce/inputs.h"
#include "benchmarks/allreduce/plot.h"
#include "benchmarks/allreduce/table.h"
#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "ddl/torch/gpu_backend.h"
#include "tests/support/ddl/fake_gpu_network.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::tools {
namespace {

using ddl::Element, ddl::Reduction;
using ddl::testing::CallLog, ddl::testing::Circle, ddl::testing::FakeNetwork;
using nlohmann::json;

/// The result of one way: the numbers of wrong elements out of place and in place, and the calls of the network.
struct Outcome {
  int64_t wrong = 0, in_place_wrong = 0;
  CallLog calls;
};
using Outcomes = std::vector<std::pair<std::string, Outcome>>;

Outcomes outcomes_of(Vectors& vectors, CallLog& log, const Expected& expected) {
  Outcomes all;
  for (const Way& way : vectors.ways()) {
    Outcome outcome;
    log.clear();
    vectors.spoil();
    way.reduce(/*in_place=*/false);
    outcome.wrong = expected.count_wrong(vectors.result());
    outcome.calls = log;
    vectors.refill();
    way.reduce(/*in_place=*/true);
    outcome.in_place_wrong = expected.count_wrong(vectors.result());
    all.emplace_back(way.name, outcome);
  }
  return all;
}

/// Runs the ways on 2 hosts of 2 ranks, each with a GPU of its own or all with one. Returns rank 3's outcomes and its
/// explanation of the decision.
std::pair<Outcomes, std::string> on_gpus(const Problem& problem, bool own_gpus) {
  ddl::ThreadWorld world(ddl::testing::by_host({2, 2}));
  const auto circle = std::make_shared<Circle>(4);
  std::pair<Outcomes, std::string> found;
  ddl::run_ranks(world, [&](ddl::Communicator& own) {
    const ddl::Comm comm = ddl::make_comm(std::shared_ptr<ddl::Communicator>(std::shared_ptr<void>(), &own));
    FakeNetwork network(circle, own_gpus ? str("card ", own.rank()) : "one card");
    ddl::GpuBackend gpus(own, [&] { return &network; });
    const auto vectors = vectors_on_gpu(comm, gpus, at::kCPU, problem);
    auto outcomes = outcomes_of(*vectors, network.log, Expected(problem, own.rank(), 4));
    if (own.rank() == 3)
      found = {outcomes, decision(gpus, at::kCPU, problem)};
    else
      (void)decision(gpus, at::kCPU, problem);
  });
  return found;
}

std::vector<std::string> names_of(const Outcomes& outcomes) {
  std::vector<std::string> names;
  for (const auto& [name, outcome] : outcomes) {
    names.push_back(name);
    EXPECT_EQ(outcome.wrong, 0) << name;
    EXPECT_EQ(outcome.in_place_wrong, 0) << name << " in place";
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(AllreduceGpusTest, AGpusNetworkIsSetBesideItsOwnAllreduceAndTheHost) {
  for (const auto& [element, reduction] : {std::pair(Element::float32, Reduction::sum),
                                           {Element::float64, Reduction::sum},
                                           {Element::int32, Reduction::maximum},
                                           {Element::int64, Reduction::minimum}}) {
    const auto [outcomes, text] = on_gpus({element, reduction, 1001}, true);
    EXPECT_EQ(names_of(outcomes), (Names{"levels", "nccl", "staged"}));
    EXPECT_EQ(text, "fake 1.0, by levels 2x2");
    EXPECT_EQ(outcomes[0].second.calls, (CallLog{"reduce-scatter of 502 among 2", "reduce-scatter of 251 among 2",
                                                 "all-gather of 251 among 2", "all-gather of 502 among 2"}));
    EXPECT_EQ(outcomes[1].second.calls, CallLog{"all-reduce of 1001 among 4"});
    EXPECT_TRUE(outcomes[2].second.calls.empty());
  }
}

TEST(AllreduceGpusTest, WhatTheNetworkItselfDoesNotReduceIsNotSetBeside) {
  for (const auto& [element, reduction] :
       {std::pair(Element::float32, Reduction::average), {Element::bfloat16, Reduction::sum}}) {
    const auto [outcomes, text] = on_gpus({element, reduction, 100}, true);
    EXPECT_EQ(names_of(outcomes), (Names{"levels", "staged"}));
  }
}

TEST(AllreduceGpusTest, TheOtherCollectivesHaveOneWayAndAreRightAlsoWhereVectorsAreMisaligned) {
  for (const auto& [collective, name] : {std::pair(Collective::reduce_scatter, "levels"),
                                         {Collective::all_gather, "levels"},
                                         {Collective::broadcast, "tree"}}) {
    const Problem problem{.count = 1001, .collective = collective, .offset_bytes = 4};
    EXPECT_EQ(names_of(on_gpus(problem, true).first), Names{name}) << name_of(collective);
  }
}

TEST(AllreduceGpusTest, WhereTheHostDoesItThereIsOneWayAndTheReasonIsSaid) {
  const auto [shared, why] = on_gpus({Element::float32, Reduction::sum, 100}, false);
  EXPECT_EQ(names_of(shared), Names{"levels"});
  EXPECT_EQ(why, "staged on the host: ranks 0 and 1 share GPU one card");
  const auto [largest, why_largest] = on_gpus({Element::float32, Reduction::maximum, 100}, true);
  EXPECT_EQ(names_of(largest), Names{"levels"});
  EXPECT_EQ(why_largest, "staged on the host: the maximum of float32 is the CPU's");
}

TEST(AllreduceGpusTest, WhatIsSpoiltIsNoResult) {
  const ddl::Comm comm = ddl::make_comm(ddl::self_communicator());
  const auto vectors = vectors_on_gpu(comm, *comm->gpus, at::kCPU, {Element::float16, Reduction::sum, 50});
  const Expected expected(Element::float16, Reduction::sum, 1);
  vectors->refill();
  EXPECT_EQ(expected.count_wrong(vectors->result()), 0);
  vectors->spoil();
  EXPECT_EQ(expected.count_wrong(vectors->result()), 50);
}

json row(const char* algorithm, int64_t bytes, double seconds) {
  return {{"bytes", bytes},
          {"algorithm", algorithm},
          {"seconds", seconds},
          {"in_place_seconds", seconds},
          {"bound_seconds", nullptr}};
}

TEST(AllreduceGpusTest, APictureWithoutABoundHasNone) {
  json result{{"world_size", 4},
              {"levels", "2x2"},
              {"mpi", "some MPI"},
              {"cards", "NCCL 2.28.9, by levels 2x2"},
              {"type", "float32"},
              {"op", "sum"},
              {"repeats", 3},
              {"rows", {row("levels", 1000, 1), row("nccl", 1000, 2), row("levels", 2000, 1), row("nccl", 2000, 2)}}};
  complete(result);
  const std::string plot = draw_plot(result);
  for (const char* part : {"class=\"curve levels\"", "class=\"curve nccl\"", "NCCL 2.28.9, by levels 2x2"})
    EXPECT_NE(plot.find(part), std::string::npos) << part;
  for (const char* part : {"class=\"curve bound\"", "some MPI"}) EXPECT_EQ(plot.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace spillway::tools
