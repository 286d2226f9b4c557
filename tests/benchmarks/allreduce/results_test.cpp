// Tests of the table that `spillway bench allreduce` makes of its measurements, and of its check for wrong results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "benchmarks/allreduce/gloo.h"
#include "benchmarks/allreduce/inputs.h"
#include "benchmarks/allreduce/launcher.h"
#include "benchmarks/allreduce/sweep.h"
#include "benchmarks/allreduce/table.h"
#include "core/error.h"
#include "ddl/allreduce/combine.h"
#include "tools/cli/launch_result.h"

namespace spillway::tools {
namespace {

using ddl::Element, ddl::Reduction;
using nlohmann::json;

constexpr auto kElements = {Element::float32,  Element::float64, Element::float16,
                            Element::bfloat16, Element::int32,   Element::int64};
constexpr auto kReductions = {Reduction::sum, Reduction::average, Reduction::maximum, Reduction::minimum};

/// Returns the ranks' contributions, combined one after another.
std::vector<std::byte> combined(Element element, Reduction reduction, int ranks, int64_t count) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<ddl::Term> terms;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(contribution(element, rank, count));
  for (const auto& input : inputs) terms.push_back({input.data(), false});
  std::vector<std::byte> partial(static_cast<size_t>(count * ddl::partial_bytes(element))), result(inputs[0].size());
  ddl::combine(element, reduction, partial.data(), terms, count);
  ddl::finish(element, reduction, result.data(), partial.data(), count, ranks);
  return result;
}

TEST(AllreduceValuesTest, WhatIsExpectedIsWhatTheContributionsMake) {
  for (const auto element : kElements)
    for (const auto reduction : kReductions)
      for (const int ranks : {1, 2, 3, 19})
        for (const int64_t count : {1, 17, 10'000})
          EXPECT_EQ(Expected(element, reduction, ranks).count_wrong(combined(element, reduction, ranks, count)), 0)
              << ddl::name_of(element) << " " << ddl::name_of(reduction) << " " << ranks << " " << count;
}

TEST(AllreduceValuesTest, EveryWrongElementIsCounted) {
  for (const auto element : kElements) {
    const Expected expected(element, Reduction::sum, 3);
    auto result = combined(element, Reduction::sum, 3, 20'000);
    const auto bytes = static_cast<size_t>(ddl::element_bytes(element));
    for (const size_t k : {0, 17, 9'999, 19'999}) result[k * bytes] ^= std::byte{1};
    EXPECT_EQ(expected.count_wrong(result), 4) << ddl::name_of(element);
    EXPECT_EQ(expected.count_wrong(contribution(element, 0, 1000)), 1000) << "an input is no sum";
    std::fill(result.begin(), result.end(), std::byte{0xff});
    EXPECT_EQ(expected.count_wrong(result), 20'000) << "what a result is overwritten with is none";
  }
}

TEST(AllreduceValuesTest, AResultThatIsShiftedByAnyDistanceIsWrong) {
  constexpr int64_t kCount = 20'000;
  for (const auto reduction : kReductions) {
    const auto result = combined(Element::int32, reduction, 19, kCount);
    for (const int64_t distance : {1, 16, 17, 34, 256, 289, 4096, 9999}) {
      auto shifted = result;
      std::rotate(shifted.begin(), shifted.begin() + 4 * distance, shifted.end());
      EXPECT_GT(Expected(Element::int32, reduction, 19).count_wrong(shifted), kCount * 3 / 4)
          << ddl::name_of(reduction) << " by " << distance;
    }
  }
}

TEST(AllreduceValuesTest, APartOfAReduceScatterIsThatOfTheWhole) {
  const Problem problem{.element = Element::float32, .count = 1001, .collective = Collective::reduce_scatter};
  const auto whole = combined(Element::float32, Reduction::sum, 3, problem.count);
  for (int rank = 0; rank < 3; ++rank) {
    const ddl::Range own = problem.result(rank, 3);
    auto part = std::span(whole).subspan(static_cast<size_t>(4 * own.begin), static_cast<size_t>(4 * own.size()));
    EXPECT_EQ(Expected(problem, rank, 3).count_wrong(part), 0) << rank;
    EXPECT_GT(Expected(problem, (rank + 1) % 3, 3).count_wrong(part), own.size() / 2) << "another rank's part";
  }
}

TEST(AllreduceValuesTest, AnAllGatherHasEveryRanksPartAndABroadcastTheRoots) {
  Problem problem{.element = Element::bfloat16, .count = 10'000, .collective = Collective::all_gather};
  std::vector<std::byte> gathered(static_cast<size_t>(problem.bytes()));
  for (int rank = 0; rank < 3; ++rank) {
    const ddl::Range own = problem.input(rank, 3);
    contribute(std::span(gathered).subspan(static_cast<size_t>(2 * own.begin), static_cast<size_t>(2 * own.size())),
               problem.element, rank, own.begin);
  }
  EXPECT_EQ(Expected(problem, 1, 3).count_wrong(gathered), 0);
  EXPECT_GT(Expected(problem, 1, 3).count_wrong(contribution(problem.element, 0, problem.count)), problem.count / 3);
  problem.collective = Collective::broadcast;
  EXPECT_EQ(Expected(problem, 1, 3).count_wrong(contribution(problem.element, kRoot, problem.count)), 0);
  EXPECT_GT(Expected(problem, 1, 3).count_wrong(contribution(problem.element, 1, problem.count)), problem.count / 2);
  EXPECT_EQ(problem.input(1, 3).size(), 0);
  EXPECT_EQ(problem.input(kRoot, 3).size(), problem.count);
}

TEST(AllreduceValuesTest, NamesThatAreNoneAreRefused) {
  EXPECT_EQ(parse_element("bfloat16"), Element::bfloat16);
  EXPECT_EQ(parse_reduction("max"), Reduction::maximum);
  EXPECT_THROW(parse_element("float8"), BadRequest);
  EXPECT_THROW(parse_reduction("product"), BadRequest);
  EXPECT_EQ(parse_collective("all_gather"), Collective::all_gather);
  EXPECT_THROW(parse_collective("gather"), BadRequest);
}

TEST(AllreduceSweepTest, SizesAreListedOrGoByAFactorOrAStep) {
  using Sizes = std::vector<int64_t>;
  const std::vector<std::string> floats{"float32"};
  EXPECT_EQ(sizes_of({}, floats), (Sizes{65536, 262144, 1 << 20, 4 << 20, 16 << 20}));
  EXPECT_EQ(sizes_of({.sizes = {"4KiB", "12"}}, floats), (Sizes{4096, 12}));
  EXPECT_EQ(sizes_of({.begin = "8", .end = "100"}, floats), (Sizes{8, 16, 32, 64}));
  EXPECT_EQ(sizes_of({.begin = "8", .end = "100", .factor = 3}, floats), (Sizes{8, 24, 72}));
  EXPECT_EQ(sizes_of({.begin = "10", .end = "20", .factor = 1.01}, floats), (Sizes{8, 12, 16, 20})) << "whole elements";
  EXPECT_EQ(sizes_of({.begin = "8", .end = "24", .step = "6"}, floats), (Sizes{8, 12, 20}));
  EXPECT_EQ(sizes_of({.begin = "64"}, {"float16", "int64"}), Sizes{64});
  EXPECT_EQ(step_of({.begin = "8", .factor = 3}, 3), "3(factor)");
  EXPECT_EQ(step_of({.begin = "8", .step = "1KiB"}, 3), "1024(bytes)");
  EXPECT_EQ(step_of({}, 5), "5(sizes)");
}

TEST(AllreduceSweepTest, SizesThatAreNoneAreRefused) {
  const std::vector<std::string> floats{"float32"};
  for (const Sweep& sweep :
       {Sweep{.sizes = {"6"}}, Sweep{.sizes = {"0"}}, Sweep{.sizes = {"8"}, .begin = "8"}, Sweep{.end = "8"},
        Sweep{.factor = 2}, Sweep{.begin = "8", .end = "4"}, Sweep{.begin = "2"},
        Sweep{.begin = "8", .end = "16", .factor = 1}, Sweep{.begin = "8", .end = "16", .step = "4", .factor = 2},
        Sweep{.begin = "8", .end = "16", .step = "0"}, Sweep{.begin = "8", .end = "1GiB", .step = "4"}})
    EXPECT_THROW(sizes_of(sweep, floats), BadRequest);
  EXPECT_THROW(sizes_of({.sizes = {"12"}}, {"float32", "int64"}), BadRequest) << "no whole int64";
}

TEST(AllreduceSweepTest, NamesAreOneOrSeveralOrAll) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(parse_types("float32"), Names{"float32"});
  EXPECT_EQ(parse_types("all").size(), 6u);
  EXPECT_EQ(parse_operations("max,sum,max"), (Names{"max", "sum"}));
  EXPECT_EQ(parse_collectives("all").size(), 4u);
  EXPECT_THROW(parse_types("float32,float8"), BadRequest);
  EXPECT_THROW(parse_operations(""), BadRequest);
}

using Words = std::vector<std::string>;

TEST(AllreduceLauncherTest, OpenMpiIsToldThatRootAndMoreRanksThanCoresAreMeant) {
  const auto open_mpi = ddlrun::parse_version("mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs to …");
  EXPECT_EQ(completed_launcher({"mpirun"}, open_mpi, true),
            (Words{"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}));
  EXPECT_EQ(completed_launcher({"mpirun"}, open_mpi, false), (Words{"mpirun", "--oversubscribe", "--bind-to", "none"}));
  const Words own{"mpirun", "--allow-run-as-root", "--nooversubscribe", "--bind-to", "core"};
  EXPECT_EQ(completed_launcher(own, open_mpi, true), own) << "what is said stays";
  EXPECT_EQ(forced_allreduce(open_mpi, "4"),
            (Words{"--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"}));
}

TEST(AllreduceLauncherTest, OtherLaunchersAreToldOnlyWhatTheyKnow) {
  const auto mpich = ddlrun::parse_version("mpiexec", "HYDRA build details:\n    Version:            4.0.2\n");
  EXPECT_EQ(completed_launcher({"mpiexec"}, mpich, true), Words{"mpiexec"});
  const auto intel = ddlrun::parse_version("mpirun", "Intel(R) MPI Library for Linux* OS, Version 2021.9\n");
  EXPECT_EQ(completed_launcher({"mpirun"}, intel, true), (Words{"mpirun", "-genv", "I_MPI_PIN", "off"}));
  EXPECT_EQ(completed_launcher({"srun", "--mpi=pmix"}, std::nullopt, true), (Words{"srun", "--mpi=pmix"}));
  EXPECT_FALSE(ask_launcher("no-such-launcher").has_value());
  EXPECT_FALSE(ask_launcher("true").has_value()) << "it does not say what it is";
}

json row(int64_t bytes, const char* algorithm, double seconds, double in_place) {
  return {{"bytes", bytes},
          {"algorithm", algorithm},
          {"seconds", seconds},
          {"in_place_seconds", in_place},
          {"bound_seconds", 0.5}};
}

TEST(AllreduceTableTest, TheErrorOfTheModelIsOverBothTimesAndAllLaunches) {
  json one = row(1000, "levels", 2, 4);
  one["predicted_seconds"] = 3;  // the two errors are 1/2 and 1/4
  json several = row(4000, "levels", 2, 2);
  several["predicted_seconds"] = 9;
  several["by_launch"] = {{{"predicted_seconds", 2}, {"seconds", 2}, {"in_place_seconds", 2}},
                          {{"predicted_seconds", 4}, {"seconds", 5}, {"in_place_seconds", 5}},
                          {{"predicted_seconds", 8}, {"seconds", 1}, {"in_place_seconds", 1}}};
  json result{{"world_size", 4}, {"rows", {one, row(1000, "mpi", 8, 8), several}}};
  complete(result);
  EXPECT_DOUBLE_EQ(result["rows"][0]["model_error"], 0.375);
  EXPECT_FALSE(result["rows"][1].contains("model_error"));
  EXPECT_DOUBLE_EQ(result["rows"][2]["model_error"], 0.2) << "of 0, 0, 0.2, 0.2, 7, 7";
  EXPECT_DOUBLE_EQ(result["model_error"]["median"], 0.2875);
  EXPECT_DOUBLE_EQ(result["model_error"]["worst"], 0.375);
  EXPECT_EQ(result["model_error"]["worst_bytes"], 1000);
  EXPECT_EQ(result["model_error"]["sizes"], 2);
}

TEST(AllreduceTableTest, BandwidthsSharesAndTheInstalledMpisTimesAreAdded) {
  json result{{"world_size", 4}, {"rows", {row(1000, "ring", 2, 4), row(1000, "mpi", 8, 8), row(8000, "ring", 2, 2)}}};
  complete(result);
  const json& ring = result["rows"][0];
  EXPECT_DOUBLE_EQ(ring["algbw"], 500e-9);
  EXPECT_DOUBLE_EQ(ring["busbw"], 750e-9);
  EXPECT_DOUBLE_EQ(ring["percent_of_bound"], 25);
  EXPECT_DOUBLE_EQ(ring["mpi_seconds"], 8);
  EXPECT_TRUE(result["rows"][2]["mpi_seconds"].is_null());
  EXPECT_TRUE(result["model_error"].is_null());
}

TEST(AllreduceTableTest, ACollectivesBandwidthIsCountedAsNcclTestsDo) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::allreduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 4), 1);
  json half = row(8000, "levels", 2, 4), own = half, mpi = row(8000, "mpi", 1, 1);
  half["collective"] = mpi["collective"] = "all_gather";
  own["collective"] = "broadcast";
  half["back_to_back"] = {{"seconds", 1}, {"in_place_seconds", 2}};
  json result{{"world_size", 4}, {"rows", {half, own, mpi}}};
  complete(result);
  EXPECT_DOUBLE_EQ(result["rows"][0]["busbw"], 3e-6);
  EXPECT_DOUBLE_EQ(result["rows"][0]["in_place_busbw"], 1.5e-6);
  EXPECT_DOUBLE_EQ(result["rows"][0]["back_to_back"]["busbw"], 6e-6);
  EXPECT_DOUBLE_EQ(result["rows"][0]["back_to_back"]["in_place_algbw"], 4e-6);
  EXPECT_DOUBLE_EQ(result["rows"][1]["busbw"], 4e-6);
  EXPECT_DOUBLE_EQ(result["rows"][0]["mpi_seconds"], 1);
  EXPECT_TRUE(result["rows"][1]["mpi_seconds"].is_null()) << "that is another collective's";
  EXPECT_DOUBLE_EQ(result["avg_bus_bandwidth"]["levels"], (6e-6 + 3e-6 + 4e-6 + 2e-6) / 4);
}

TEST(AllreduceTableTest, TheSpreadOfALaunchsCallsIsAdded) {
  json one = row(1000, "levels", 2, 4);
  for (int call = 100; call > 0; --call) one["call_seconds"].push_back(call);
  one["in_place_call_seconds"] = {7};
  one["wrong"] = 3;
  json result{{"world_size", 2}, {"rows", {one, one}}};
  complete(result);
  const json& spread = result["rows"][0]["spread"];
  EXPECT_EQ(spread, (json{{"min_seconds", 1.0},
                          {"p50_seconds", 50.0},
                          {"p95_seconds", 95.0},
                          {"p99_seconds", 99.0},
                          {"max_seconds", 100.0}}));
  EXPECT_EQ(result["rows"][0]["in_place_spread"]["p99_seconds"], 7);
  EXPECT_EQ(result["out_of_bounds"], 6);
}

TEST(AllreduceTableTest, WithoutABoundThereIsNoShareOfIt) {
  json alone = row(1000, "levels", 2, 4);
  alone["bound_seconds"] = nullptr;
  json result{{"world_size", 4}, {"rows", {alone}}};
  complete(result);
  EXPECT_TRUE(result["rows"][0]["percent_of_bound"].is_null());
  EXPECT_DOUBLE_EQ(result["rows"][0]["algbw"], 500e-9);
}

TEST(AllreduceGlooTest, RanksMeetAtTheFirstOnesHost) {
  const auto options_of = [](const std::vector<std::string>& hosts) {
    json ranks = json::array();
    for (const auto& host : hosts) ranks.push_back({{"host", host}});
    const auto command = gloo_command("some/python", {{"problems", {1}}}, ranks, 30);
    EXPECT_EQ(std::vector(command.begin(), command.begin() + 2), (std::vector<std::string>{"some/python", "-c"}));
    EXPECT_EQ(command.size(), 4u);
    return json::parse(command.back());
  };
  const json one = options_of({"a", "a", "a"}), two = options_of({"b", "a"});
  EXPECT_EQ(one["address"], "127.0.0.1");
  EXPECT_EQ(one["ranks"], 3);
  EXPECT_EQ(one["timeout_seconds"], 30);
  EXPECT_EQ(one["problems"], json({1}));
  EXPECT_EQ(two["address"], "b");
  EXPECT_TRUE(two["port"] >= 20'000 && two["port"] <= 32'000) << two;
}

TEST(AllreduceGlooTest, IsAskedForWhatItCanReduce) {
  const auto problem = [](Collective collective, Reduction reduction) {
    return Problem{
        .element = Element::float64, .reduction = reduction, .count = 4, .collective = collective, .offset_bytes = 16};
  };
  const auto mean = problem(Collective::allreduce, Reduction::average);
  const auto half = problem(Collective::reduce_scatter, Reduction::sum);
  const json options = gloo_options({mean, half, problem(Collective::allreduce, Reduction::maximum)}, {.repeats = 7});
  EXPECT_EQ(options["problems"], json::array({{{"bytes", 32}, {"count", 4}, {"type", "float64"}, {"op", "max"}}}));
  EXPECT_EQ(options["offset_bytes"], 16);
  EXPECT_EQ(options["timing"]["repeats"], 7);
  EXPECT_THROW(gloo_options({mean, half}, {}), BadRequest);
}

TEST(LaunchResultTest, TagsOfALauncherChangeNothingWhereverTheyStand) {
  const json result{{"version", "Open MPI 4.1.0: [1,0]<stdout>:"}, {"call_seconds", {0.25, 1e-9}}, {"op", nullptr}};
  const std::string line = result_line(result);
  for (const std::string tag : {"", "[1,0]<stdout>:", "[0] ", "0: "})
    for (size_t cut = line.find(' ') + 1; cut < line.size(); ++cut)
      EXPECT_EQ(result_in(str(tag, line.substr(0, cut), tag, line.substr(cut), "\n")), result) << tag << cut;
}

TEST(LaunchResultTest, OtherLinesAreNoResultsAndDamageIsSaid) {
  EXPECT_EQ(result_in("[1,0]<stdout>:epoch 3\n"), std::nullopt);
  const std::string line = result_line({{"rows", {1, 2}}});
  EXPECT_THROW(result_in(line.substr(0, line.size() - 2)), std::runtime_error);
  EXPECT_THROW(result_in(line.substr(0, line.size() - 1)), std::runtime_error);
  EXPECT_THROW(result_in(line + "zz"), std::runtime_error);
}

}  // namespace
}  // namespace spillway::tools
