#include "ddl/allreduce/explain.h"

#include <gtest/gtest.h>

#include "ddl/comm/thread_world.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;

const Levels kUneven(6, {by_host({4, 2})});
const Costs kCosts{.levels = {{1e-6, 1e-7, 1e10}, {50e-6, 5e-6, 25e6}}, .reduce_seconds_per_byte = 1e-10};
constexpr int64_t kCount = 3'000'000;

}  // namespace

TEST(ExplainTest, SaysWhatEachLevelDoesAndHowMuchCrossesIt) {
  const auto all = explain({Plan(kUneven)}, kCount, Element::float32);
  ASSERT_EQ(all.levels.size(), 2u);
  EXPECT_EQ(all.levels[1].groups, 1);
  EXPECT_EQ(all.levels[1].joined, 2);
  EXPECT_EQ(all.levels[1].traffic.sent_by_group, all.levels[1].least_bytes);
  EXPECT_FALSE(all.levels[0].alike);
  EXPECT_FALSE(all.levels[0].predicted_seconds || all.seconds) << "nobody measured anything";
  const std::string text = describe(all);
  EXPECT_NE(text.find("over 6 ranks (4+2) in chunks of 1.00 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("level 1, 2 groups of up to 4 ranks: direct; a rank sends"), std::string::npos) << text;
  EXPECT_NE(text.find("level 2, 1 group of 2 groups: direct"), std::string::npos) << text;
  EXPECT_NE(text.find("a group 11.4 MiB (at least 11.4 MiB)\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("adding"), std::string::npos) << text;
  EXPECT_NE(describe(explain({Plan(Levels(1))}, 2, Element::float32)).find("nothing to send"), std::string::npos);
}

TEST(ExplainTest, CountsBytesOfTheElementsThatTravel) {
  const auto of = [](Element element) { return explain({Plan(kUneven)}, kCount, element); };
  EXPECT_EQ(of(Element::float64).levels[0].traffic.sent_by_rank,
            2 * of(Element::float32).levels[0].traffic.sent_by_rank);
  EXPECT_EQ(of(Element::float16).bytes, 2 * kCount);
}

TEST(ExplainTest, PredictsEachLevelAndTheWhole) {
  const Choice choice{Plan(kUneven)};
  const auto all = explain(choice, kCount, Element::float32, kCosts);
  EXPECT_EQ(all.predicted_seconds, predict_seconds(choice, kCount, Element::float32, kCosts));
  EXPECT_EQ(all.bound_seconds, bound_seconds(kUneven, 4 * kCount, kCosts));
  EXPECT_NEAR(*all.levels[1].bound_seconds, 12e6 / 25e6, 1e-9) << "2(n − 1)/n of 12 MB at 25 MB/s";
  EXPECT_GE(*all.levels[1].predicted_seconds, *all.levels[1].bound_seconds);
  EXPECT_LE(*all.levels[1].predicted_seconds, *all.predicted_seconds);
  EXPECT_LT(*all.levels[0].predicted_seconds, *all.levels[1].predicted_seconds);
  EXPECT_GT(*all.predicted_adding_seconds, 0);
  EXPECT_NE(describe(all).find("in all: at least 480.00 ms, predicted "), std::string::npos) << describe(all);
}

TEST(ExplainTest, ReportsWhatWasWaitedForAndTheShareOfTheBound) {
  AllreduceTotals totals{.calls = 2, .bytes = 8 * kCount, .time = std::chrono::milliseconds(1200), .rounds = {}};
  totals.rounds = {.waited = {std::chrono::milliseconds(10), std::chrono::milliseconds(1100)},
                   .adding = std::chrono::milliseconds(40)};
  const auto all = explain({Plan(kUneven)}, kCount, Element::float32, kCosts, totals);
  EXPECT_DOUBLE_EQ(*all.seconds, 0.6);
  EXPECT_DOUBLE_EQ(*all.levels[0].waited_seconds, 0.005);
  EXPECT_DOUBLE_EQ(*all.levels[1].waited_seconds, 0.55);
  EXPECT_DOUBLE_EQ(*all.adding_seconds, 0.02);
  const std::string text = describe(all);
  EXPECT_NE(text.find("waited 550.00 ms (80 % of the bound)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("took 600.00 ms (80 % of the bound)\n"), std::string::npos) << text;
}

TEST(ExplainTest, AnAllreduceTellsWhereItsTimeWent) {
  ThreadWorld world({0, 0, 1, 1});
  run_ranks(world, [](Communicator& comm) {
    Allreduce allreduce(comm, {.chunk_bytes = 4096});
    std::vector<float> data(10'000, 1.0f);
    for (int i = 0; i < 3; ++i) allreduce.reduce(data, Reduction::sum);
    const AllreduceTotals& totals = allreduce.totals();
    ASSERT_EQ(totals.rounds.waited.size(), 2u);
    auto parts = totals.rounds.adding;
    for (const auto waited : totals.rounds.waited) {
      EXPECT_GT(waited.count(), 0);
      parts += waited;
    }
    EXPECT_GT(totals.rounds.adding.count(), 0);
    EXPECT_LE(parts, totals.time) << "no moment counts twice";
    const Choice choice{allreduce.plan(), allreduce.options()};
    EXPECT_EQ(allreduce.describe(10'000),
              describe(explain(choice, 10'000, Element::float32, std::nullopt, allreduce.totals())));
    EXPECT_NE(allreduce.describe(10'000).find("waited"), std::string::npos);
  });
}

}  // namespace spillway::ddl
