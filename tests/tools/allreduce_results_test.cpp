// What `spillway bench allreduce` makes of its measurements, and how it knows a wrong result.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "ddl/arithmetic.h"
#include "tools/allreduce_table.h"
#include "tools/allreduce_values.h"

namespace spillway::tools {
namespace {

using ddl::Element, ddl::Reduction;
using nlohmann::json;

constexpr auto kElements = {Element::float32,  Element::float64, Element::float16,
                            Element::bfloat16, Element::int32,   Element::int64};
constexpr auto kReductions = {Reduction::sum, Reduction::average, Reduction::maximum, Reduction::minimum};

/// What the ranks contribute, combined one after another.
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

TEST(AllreduceValuesTest, NamesThatAreNoneAreRefused) {
  EXPECT_EQ(element_named("bfloat16"), Element::bfloat16);
  EXPECT_EQ(reduction_named("max"), Reduction::maximum);
  EXPECT_THROW(element_named("float8"), BadRequest);
  EXPECT_THROW(reduction_named("product"), BadRequest);
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
  one["predicted_seconds"] = 3;  // off by 1/2 and 1/4
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

TEST(AllreduceTableTest, WithoutABoundThereIsNoShareOfIt) {
  json alone = row(1000, "levels", 2, 4);
  alone["bound_seconds"] = nullptr;
  json result{{"world_size", 4}, {"rows", {alone}}};
  complete(result);
  EXPECT_TRUE(result["rows"][0]["percent_of_bound"].is_null());
  EXPECT_DOUBLE_EQ(result["rows"][0]["algbw"], 500e-9);
}

}  // namespace
}  // namespace spillway::tools
