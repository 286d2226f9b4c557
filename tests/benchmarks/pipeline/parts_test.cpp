// Tests of the parts of `spillway bench pipeline`: tables of blocks, refreshes, and runs whose items sleep.
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/pipeline/block_list.h"
#include "benchmarks/pipeline/emulated_pipeline.h"
#include "benchmarks/pipeline/emulated_run.h"
#include "benchmarks/pipeline/refresh_plan.h"
#include "core/error.h"
#include "tests/support/refusal.h"

namespace spillway::tools {
namespace {

using spillway::testing::expect_refusal;

/// A file that is there as long as the object.
class TableFile {
 public:
  explicit TableFile(const std::string& text)
      : path_(::testing::TempDir() + "blocks-" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
              "-" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".csv") {
    std::ofstream(path_) << text;
  }
  ~TableFile() { std::filesystem::remove(path_); }
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(BlockListTest, ColumnsMayHaveAnyOrderAndKindsAnyNumber) {
  const TableFile file(
      "\xEF\xBB\xBF"
      "blocks, backward,forward,statistics,inversion,preconditioning\r\n1,2,1,0,0,0\n\n2,4,3,5,6,7.5\n");
  const BlockList model = read_blocks(file.path());
  ASSERT_EQ(model.blocks.size(), 3);
  EXPECT_EQ(model.blocks[0].forward, 1);
  EXPECT_EQ(model.blocks[0].backward, 2);
  for (size_t i : {1, 2}) {
    EXPECT_EQ(model.blocks[i].forward, 3);
    EXPECT_EQ(model.blocks[i].backward, 4);
    EXPECT_EQ(model.blocks[i].statistics, 5);
    EXPECT_EQ(model.blocks[i].inversion, 6);
    EXPECT_EQ(model.blocks[i].preconditioning, 7.5);
  }
}

TEST(BlockListTest, WrongTablesAreRefusedByLineAndColumn) {
  const std::string head = "forward,backward,statistics,inversion,preconditioning\n";
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong = {
      {"", {"has no block"}},
      {head, {"has no block"}},
      {"forward,backward,statistics,inversion\n1,1,1,1\n", {":1:", "preconditioning is missing"}},
      {"forwards," + head, {":1:", "'forwards' is no column", "blocks, forward"}},
      {"forward," + head, {":1:", "forward is there twice"}},
      {head + "1,1,1,1\n", {":2:", "4 values for 5 columns"}},
      {head + "1,1,1,1,1\n1,x,1,1,1\n", {":3:", "backward is 'x'", "above 0"}},
      {head + "0,1,1,1,1\n", {":2:", "forward is '0'"}},
      {head + "1,1,-1,1,1\n", {":2:", "statistics is '-1'", "from 0 on"}},
      {head + "1,1,nan,1,1\n", {":2:", "statistics is 'nan'"}},
      {head + "1,1,1,1e999,1\n", {":2:", "inversion is '1e999'"}},
      {"blocks," + head + "0,1,1,1,1,1\n", {":2:", "blocks is '0'"}}};
  for (const auto& [text, parts] : wrong) {
    const TableFile file(text);
    expect_refusal([&] { (void)read_blocks(file.path()); }, parts);
  }
  expect_refusal([] { (void)read_blocks("no-such-file.csv"); }, {"cannot read 'no-such-file.csv'"});
}

TEST(EmulatedPipelineTest, StagesHaveTheTimesOfTheirBlocks) {
  const BlockList model = bert_base(16);
  const runtime::BlockTimes& block = model.blocks.front();
  for (const char* schedule : kSchedules) {
    const EmulatedPipeline pipeline = emulate(schedule, {.ranks = 4, .micro_batches = 4, .chunks = 2}, model, 0.5);
    const int blocks = 16 / pipeline.program.graph.stages;
    for (const pipe::StageSeconds& stage : pipeline.costs.stages) {
      EXPECT_DOUBLE_EQ(stage.forward, blocks * block.forward * 0.5e-3) << schedule;
      EXPECT_DOUBLE_EQ(stage.backward(), blocks * block.backward * 0.5e-3) << schedule;
    }
    EXPECT_NEAR(pipeline.costs.update, 4 * block.preconditioning * 0.5e-3, 1e-12) << schedule;
    EXPECT_NEAR(pipeline.refresh_seconds(), 16 * (4 * block.statistics + block.inversion) * 0.5e-3, 1e-9) << schedule;
  }
}

TEST(EmulatedPipelineTest, WrongRequestsAreRefused) {
  const BlockList model = bert_base(8);
  expect_refusal([&] { (void)emulate("2f2b", {}, model, 1); }, {"--schedules: '2f2b'", "zb-h1"});
  expect_refusal([&] { (void)emulate("chimera", {.ranks = 3, .micro_batches = 3}, model, 1); }, {"even"});
  expect_refusal([&] { (void)emulate("gpipe", {.ranks = 9}, model, 1); }, {"9"});
}

TEST(RefreshPlanTest, LayersHaveTheirTurnsEvenlyApart) {
  const EmulatedPipeline pipeline = emulate("1f1b", {}, bert_base(16), 1);
  for (const RefreshRate rate : {RefreshRate{1, 3}, RefreshRate{4, 9}, RefreshRate{3, 3}}) {
    std::map<size_t, std::vector<int>> taken;
    std::vector<double> load(rate.steps, 0);
    double sum = 0, most = 0;
    for (const auto& [number, turn] : rolling_turns(pipeline, rate, 2)) {
      const EmulatedLayer& layer = pipeline.layers[number];
      const double cost = layer.input.inversion + layer.output.inversion;
      EXPECT_EQ(turn.serves_step, turn.taken_step + 2);
      taken[number].push_back(turn.taken_step);
      load.at(turn.taken_step) += cost;
      sum += cost;
      most = std::max(most, cost);
    }
    ASSERT_EQ(taken.size(), pipeline.layers.size());
    for (auto& [layer, steps] : taken) {
      ASSERT_EQ(steps.size(), static_cast<size_t>(rate.turns));
      std::sort(steps.begin(), steps.end());
      steps.push_back(steps.front() + rate.steps);
      for (size_t i = 1; i < steps.size(); ++i) {
        EXPECT_GE(steps[i] - steps[i - 1], rate.steps / rate.turns);
        EXPECT_LE(steps[i] - steps[i - 1], (rate.steps + rate.turns - 1) / rate.turns);
      }
    }
    EXPECT_LE(*std::max_element(load.begin(), load.end()), sum / rate.steps + rate.turns * most);
  }
}

TEST(RefreshPlanTest, AnInversionComesAfterAllStatisticsOfItsFactor) {
  for (const char* schedule : kSchedules) {
    const EmulatedPipeline pipeline = emulate(schedule, {}, bert_base(16), 1);
    const RefreshRate rate{2, 5};
    const auto extras = refresh_work(pipeline, rolling_turns(pipeline, rate, 2), /*pieces=*/3);
    double seconds = 0;
    std::set<int> statistics;
    for (const pipe::Extra& extra : extras) {
      seconds += extra.seconds;
      EXPECT_EQ(extra.pieces, extra.after.empty() ? 1 : 3);
      if (extra.after.empty()) continue;
      EXPECT_EQ(extra.after.size(), 4);
      for (int before : extra.after) {
        EXPECT_TRUE(statistics.insert(before).second);
        EXPECT_EQ(extras[before].taken_step, extra.taken_step);
        EXPECT_EQ(extras[before].ready.stage, extra.ready.stage);
        EXPECT_EQ(extras[before].ready.work, extra.ready.work);
      }
    }
    EXPECT_EQ(statistics.size() * 5, extras.size() * 4) << schedule;
    EXPECT_NEAR(seconds, rate.turns * pipeline.refresh_seconds(), 1e-9) << schedule;
  }
}

TEST(RefreshPlanTest, WithoutAnIntervalItTakesTheHighestRateThatCostsNothing) {
  const EmulatedPipeline pipeline = emulate("1f1b", {}, bert_base(12), 1);
  // The work of a refresh is that of the waits of 2.21 steps.
  const RefreshPlan rolling = plan_refresh(pipeline, {.rolling = true});
  EXPECT_EQ(rolling.rate.steps, 9);
  EXPECT_EQ(rolling.rate.turns, 4);
  const RefreshPlan together = plan_refresh(pipeline, {.rolling = false});
  EXPECT_EQ(together.rate.interval(), 3);
  for (const RefreshPlan* plan : {&rolling, &together})
    EXPECT_LE(plan->filled.exceeded_seconds(), 0.001 * plan->filled.unfilled_seconds);
  const RefreshPlan often = plan_refresh(pipeline, {.rolling = true, .interval = 1});
  EXPECT_EQ(often.rate.interval(), 1);
  EXPECT_GT(often.filled.exceeded_seconds(), 0);
}

TEST(EmulatedRunTest, RanksDoTheirItemsInTheOrderOfThePlan) {
  for (const char* schedule : kSchedules) {
    const EmulatedPipeline pipeline = emulate(schedule, {}, bert_base(8), 1e-3);
    const RefreshPlan plan = plan_refresh(pipeline, {.rolling = true, .interval = 3, .pieces = 2});
    const RunResult run =
        run_cycles(pipeline.program, plan.filled, plan.extras, pipeline.costs, {.cycles = 2, .messages = {5000}});
    EXPECT_GT(run.cycle_seconds, 0);
    ASSERT_EQ(run.done.size(), 4);
    const int cycles = run.done.front().back().cycle + 1;
    EXPECT_GE(cycles, 3);
    for (size_t rank = 0; rank < run.done.size(); ++rank) {
      auto next = run.done[rank].begin();
      for (int cycle = 0; cycle < cycles; ++cycle)
        for (int step = 0; step < plan.filled.steps(); ++step)
          for (const pipe::FilledItem& item : plan.filled.items[rank][step]) {
            if (item.extra >= 0 && item.age > cycle) continue;  // its statistics would be of a step before the run
            ASSERT_NE(next, run.done[rank].end()) << schedule;
            EXPECT_EQ(next->cycle, cycle);
            EXPECT_EQ(next->step, step);
            EXPECT_EQ(next->what.item, item.item);
            EXPECT_EQ(next->what.extra, item.extra);
            EXPECT_EQ(next->what.piece, item.piece);
            ++next;
          }
      EXPECT_EQ(next, run.done[rank].end()) << schedule;
    }
  }
}

TEST(EmulatedRunTest, RanksThatDisagreeEndTheRun) {
  const EmulatedPipeline pipeline = emulate("chimera", {.ranks = 2, .micro_batches = 4}, bert_base(2), 1e-3);
  RefreshPlan plan = plan_refresh(pipeline, {.rolling = true, .interval = 3});
  auto& items = plan.filled.items[1].front();
  const auto first = std::find_if(items.begin(), items.end(), [](const pipe::FilledItem& item) {
    return item.item == pipe::Item{pipe::Work::forward, 1, 0};
  });
  ASSERT_NE(first, items.end());
  first->item.micro_batch = 2;  // of the same copy
  try {
    (void)run_cycles(pipeline.program, plan.filled, plan.extras, pipeline.costs, {});
    FAIL() << "the run ended";
  } catch (const std::exception& error) {
    for (const char* part : {"micro-batch 0", "micro-batch 2", "activations from stage 0 to stage 1"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(EmulatedRunTest, AMessageTakesItsTimeOnALink) {
  EXPECT_GE(message_seconds({.bytes = 100'000, .link_bytes_per_second = 10e6}, 3), 0.01);
}

}  // namespace
}  // namespace spillway::tools
