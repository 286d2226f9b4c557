// Tests of schedules for any graph.
#include "pipe/list_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/error.h"
#include "pipe/schedules.h"

namespace spillway::pipe {
namespace {

/// Returns the most micro-batches between the first forward and the last backward of a rank.
int most_in_flight(const std::vector<Item>& items) {
  std::map<int, int> left;
  for (const Item& item : items) ++left[item.micro_batch];
  std::map<int, int> open;
  size_t most = 0;
  for (const Item& item : items) {
    if (item.work == Work::update) continue;
    open.try_emplace(item.micro_batch, left[item.micro_batch]);
    most = std::max(most, open.size());
    if (--open[item.micro_batch] == 0) open.erase(item.micro_batch);
  }
  return static_cast<int>(most);
}

TEST(ListScheduleTest, AChainTakesHardlyLongerThanOneForwardOneBackward) {
  for (int ranks : {1, 2, 3, 4, 8})
    for (int micro_batches : {1, ranks, 3 * ranks}) {
      const Costs costs = equal_stages(ranks, 1, 2.2);
      const Program program = list_schedule(chain(ranks, ranks), micro_batches, ranks, costs);
      check(program);
      const double published = replay(one_forward_one_backward(ranks, micro_batches), costs).seconds;
      EXPECT_LE(replay(program, costs).seconds, 1.01 * published) << ranks << " ranks, " << micro_batches;
      for (const auto& items : program.items) EXPECT_LE(most_in_flight(items), ranks);
    }
}

TEST(ListScheduleTest, AUNetsSkipsStayOnTheirRanks) {
  const Graph graph = levels_down_and_up(4);
  ASSERT_EQ(graph.stages, 8);
  ASSERT_EQ(graph.ranks(), 4);
  int skips = 0;
  for (const Edge& edge : graph.edges) {
    if (edge.to == edge.from + 1) continue;
    ++skips;
    EXPECT_EQ(graph.rank_of[0][edge.from], graph.rank_of[0][edge.to]);
  }
  EXPECT_EQ(skips, 3);
  const Costs costs = equal_stages(8, 1, 2);
  for (int in_flight : {1, 2, 4, 8}) {
    const Program program = list_schedule(graph, 8, in_flight, costs);
    check(program);
    const Replayed all = replay(program, costs);
    EXPECT_LE(all.seconds, 8 * 8 * 3.0 + 1e-9) << "one micro-batch after the other";
    for (const auto& items : program.items) EXPECT_LE(most_in_flight(items), in_flight);
  }
  const double one = replay(list_schedule(graph, 8, 1, costs), costs).seconds;
  const double four = replay(list_schedule(graph, 8, 4, costs), costs).seconds;
  EXPECT_NEAR(one, 8 * 8 * 3.0, 1e-9);
  EXPECT_LT(four, one / 2);
}

TEST(ListScheduleTest, RandomGraphsRun) {
  std::mt19937 random(5);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  for (int i = 0; i < 200; ++i) {
    const int ranks = number(1, 5), stages = ranks * number(1, 3), micro_batches = number(1, 6);
    Graph graph = chain(stages, ranks);
    for (int& rank : graph.rank_of[0]) rank = number(0, ranks - 1);
    for (int r = 0; r < ranks; ++r) graph.rank_of[0][r] = r;  // each rank has a stage
    for (int skip = number(0, 3); skip > 0 && stages > 2; --skip) {
      const int from = number(0, stages - 3);
      graph.edges.push_back({from, number(from + 2, stages - 1)});
    }
    Costs costs;
    for (int s = 0; s < stages; ++s) costs.stages.push_back({0.1 * number(1, 20), 0.1 * number(1, 20), 0.1});
    costs.message = 0.1 * number(0, 3);
    const int in_flight = number(1, 4);
    const Program program = list_schedule(graph, micro_batches, in_flight, costs);
    check(program);
    for (const auto& items : program.items) EXPECT_LE(most_in_flight(items), in_flight);
  }
}

TEST(ListScheduleTest, WrongNumbersAreRefused) {
  const Costs costs = equal_stages(2, 1, 2);
  EXPECT_THROW((void)list_schedule(chain(2, 2), 0, 1, costs), BadRequest);
  EXPECT_THROW((void)list_schedule(chain(2, 2), 1, 0, costs), BadRequest);
  Graph graph = chain(2, 2);
  graph.edges.push_back({1, 0});
  EXPECT_THROW((void)list_schedule(graph, 1, 1, costs), BadRequest);
  EXPECT_THROW((void)list_schedule(chimera(2, 2).graph, 2, 1, costs), BadRequest);
}

}  // namespace
}  // namespace spillway::pipe
