// Tests of the times that a rank of a pipeline tells: spans with other work between the items, waits, messages.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "pipe/channels.h"
#include "pipe/simulate.h"
#include "runtime/models/task.h"
#include "runtime/pipeline/pipeline_executor.h"
#include "runtime/pipeline/step_record.h"
#include "runtime/pipeline/summarize_pipeline.h"

namespace spillway::runtime {
namespace {

constexpr int kMicroBatches = 8;

using RankItems = std::vector<std::vector<pipe::FilledItem>>;  // by rank, in order

std::unique_ptr<Task> small_mlp() {
  static std::mutex one_at_a_time;  // ranks on threads share the generator
  const std::lock_guard lock(one_at_a_time);
  at::manual_seed(3);
  return make_task("mlp", {.mlp = {.input = 12, .hidden = 20, .layers = 7, .classes = 5}});
}

Batch batch() {
  return {at::ones({6, 12}), at::ones({6}, at::kLong)};
}

StepWork work() {
  return {.micro_batches = kMicroBatches, .batch = [](int64_t) { return batch(); }};
}

/// Runs a body on each rank of a pipeline by a schedule.
void on_ranks(int ranks, PipelineSchedule schedule,
              const std::function<void(const std::shared_ptr<const Pipeline>&)>& body) {
  ddl::ThreadWorld world(std::vector<int>(static_cast<size_t>(ranks), 0));
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        const auto task = small_mlp();
        body(make_pipeline({.ranks = ranks, .schedule = schedule}, kMicroBatches, *task, batch(), Amp::off,
                           ddl::make_comm(world.communicator(rank))));
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

pipe::Costs random_costs(std::mt19937& random, double message) {
  std::uniform_real_distribution<double> seconds(0.1, 2);
  pipe::Costs costs{.stages = {}, .message = message};
  for (int stage = 0; stage < 8; ++stage) costs.stages.push_back({seconds(random), seconds(random), seconds(random)});
  return costs;
}

/// Returns the program's items without updates, with three extras at random places of each rank. Seconds of the extras
/// are added to `seconds`.
RankItems with_extras(const pipe::StepProgram& program, std::mt19937& random, std::vector<double>& seconds) {
  RankItems ranks;
  for (const auto& items : program.items) {
    auto& own = ranks.emplace_back();
    for (const pipe::Item& item : items)
      if (item.work != pipe::Work::update) own.push_back({.item = item});
    for (int i = 0; i < 3; ++i) {
      const auto place = static_cast<std::ptrdiff_t>(random() % (own.size() + 1));
      own.insert(own.begin() + place, {.extra = static_cast<int>(seconds.size())});
      seconds.push_back(0.1 + static_cast<double>(random() % 20) / 10);
    }
  }
  return ranks;
}

/// Sets begin and end of all items: each begins when its rank is free and what it needs has come.
void set_times(RankItems& ranks, const pipe::StepProgram& program, const pipe::Costs& costs,
               const std::vector<double>& extra_seconds) {
  std::map<pipe::Item, double> ends;
  std::vector<size_t> next(ranks.size(), 0);
  std::vector<double> free(ranks.size(), 0);
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      for (; next[rank] < ranks[rank].size(); ++next[rank], goes_on = true) {
        pipe::FilledItem& filled = ranks[rank][next[rank]];
        filled.begin = free[rank];
        bool may_begin = true;
        if (filled.extra < 0)
          for (const pipe::Item& need : program.needs(filled.item, static_cast<int>(rank))) {
            const auto known = ends.find(need);
            if (known == ends.end()) {
              may_begin = false;
              break;
            }
            const bool travels = program.rank_of(need.stage, need.micro_batch) != static_cast<int>(rank);
            filled.begin = std::max(filled.begin, known->second + (travels ? costs.message : 0));
          }
        if (!may_begin) break;
        filled.end = filled.begin + (filled.extra < 0 ? pipe::seconds_of(filled.item, costs)
                                                      : extra_seconds[static_cast<size_t>(filled.extra)]);
        free[rank] = filled.end;
        if (filled.extra < 0) ends[filled.item] = filled.end;
      }
  }
}

TEST(PipelineTimesTest, OtherWorkBetweenTheItemsIsAmongTheSpans) {
  std::mt19937 random(7);
  for (PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward, PipelineSchedule::interleaved})
    for (double message : {0.0, 0.3}) {
      const pipe::Costs costs = random_costs(random, message);
      const uint32_t seed = random();
      on_ranks(4, schedule, [&](const std::shared_ptr<const Pipeline>& pipeline) {
        std::mt19937 same(seed);  // on all ranks
        std::vector<double> extra_seconds;
        RankItems expected = with_extras(pipeline->plan.program, same, extra_seconds);
        set_times(expected, pipeline->plan.program, costs, extra_seconds);
        const auto model = pipeline_executor(pipeline, small_mlp(),
                                             {.clock = std::make_shared<VirtualPipelineClock>(costs, extra_seconds)});
        const auto& own = expected[static_cast<size_t>(pipeline->place)];
        std::vector<int> done;
        model->follow(&own, [&](const pipe::FilledItem& extra) { done.push_back(extra.extra); });
        model->learn(work());
        double extras = 0;
        std::vector<int> due;
        ASSERT_EQ(model->spans().size(), own.size());
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_EQ(model->spans()[i].item, own[i].item);
          EXPECT_EQ(model->spans()[i].extra, own[i].extra);
          EXPECT_NEAR(model->spans()[i].begin, own[i].begin, 1e-9) << name(schedule);
          EXPECT_NEAR(model->spans()[i].end, own[i].end, 1e-9) << name(schedule);
          if (own[i].extra < 0) continue;
          due.push_back(own[i].extra);
          extras += own[i].end - own[i].begin;
        }
        EXPECT_EQ(done, due);
        EXPECT_NEAR(model->totals().extras, extras, 1e-9);
      });
    }
}

TEST(PipelineTimesTest, OnlyLearningCounts) {
  std::mt19937 random(3);
  const pipe::Costs costs = random_costs(random, 0.3);
  on_ranks(2, PipelineSchedule::one_forward_one_backward, [&](const std::shared_ptr<const Pipeline>& pipeline) {
    const auto model =
        pipeline_executor(pipeline, small_mlp(), {.clock = std::make_shared<VirtualPipelineClock>(costs)});
    model->learn(work());
    const double waited = model->totals().wait;
    const std::vector<ChannelMessages> channels = model->channel_messages();
    model->metric(batch(), Amp::off);
    model->loss(work());
    EXPECT_EQ(model->totals().wait, waited);
    EXPECT_GT(waited, 0);
    ASSERT_EQ(channels.size(), 2u);  // activations and gradients
    for (size_t i = 0; i < channels.size(); ++i) {
      EXPECT_EQ(channels[i].bytes, kMicroBatches * 6 * 20 * 4) << "6 cases of 20 hidden units in float32";
      EXPECT_EQ(model->channel_messages()[i].bytes, channels[i].bytes);
      EXPECT_EQ(model->channel_messages()[i].waited, channels[i].waited);
    }
    EXPECT_NE(channels[0].channel.is_gradient, channels[1].channel.is_gradient);
  });
}

TEST(PipelineTimesTest, TheSummaryHasTheStepOfEveryRankAndItsPlan) {
  std::mt19937 random(5);
  const pipe::Costs costs = random_costs(random, 0);
  on_ranks(4, PipelineSchedule::interleaved, [&](const std::shared_ptr<const Pipeline>& pipeline) {
    const auto model =
        pipeline_executor(pipeline, small_mlp(), {.clock = std::make_shared<VirtualPipelineClock>(costs)});
    model->learn(work());
    const auto at = [](double seconds) {
      return SteadyTime() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    };
    // Rank r's recording began r seconds late, by the clock that the ranks share, and its passes at 10 s.
    PipelineRun run{.pipeline = *pipeline, .model = *model, .peak_bytes = 100 + pipeline->place};
    run.times.add({.began = at(10), .passed = at(100), .averaged = at(101), .updated = at(103)});
    run.recorded_since = at(2 + pipeline->place);
    const PipelineSummary summary = summarize_pipeline(run);
    const auto simulated = pipe::simulate(pipeline->plan.program, costs);
    ASSERT_TRUE(summary.step);
    EXPECT_NEAR(summary.step->begin, 8 - pipeline->place, 1e-6) << "on this rank's clock";
    EXPECT_FALSE(summary.step->fills_bubbles);
    ASSERT_EQ(summary.step->ranks.size(), 4u);
    EXPECT_EQ(summary.channels.size(), pipe::channels(pipeline->plan.program).size());
    for (const PipelineChannelSummary& channel : summary.channels)
      EXPECT_EQ(channel.bytes_per_step, kMicroBatches * 6 * 20 * 4) << channel.from << " to " << channel.to;
    for (size_t place = 0; place < 4; ++place) {
      const PipelineRankStep& rank = summary.step->ranks[place];
      EXPECT_EQ(rank.rank, static_cast<int>(place));
      const size_t items = simulated.spans[place].size() - 1;  // without the update
      ASSERT_EQ(rank.measured.size(), items + 2);
      for (size_t i = 0; i < items; ++i) {
        EXPECT_NEAR(rank.measured[i].begin, simulated.spans[place][i].begin, 1e-6);
        EXPECT_EQ(rank.measured[i].micro_batch, simulated.spans[place][i].item.micro_batch);
      }
      EXPECT_EQ(rank.measured[items].work, PipelineWork::exchange);
      EXPECT_EQ(rank.measured[items + 1].work, PipelineWork::update);
      EXPECT_NEAR(rank.measured[items + 1].end, 93, 1e-6);
      ASSERT_EQ(rank.planned.size(), items + 1);
      EXPECT_NEAR(rank.planned.back().end - rank.planned.back().begin, 2, 1e-9);
      EXPECT_NEAR(summary.ranks[place].seconds.passes(), simulated.busy[place], 1e-6);
      EXPECT_NEAR(summary.bubble(summary.ranks[place].seconds), simulated.bubble(static_cast<int>(place)), 1e-6);
      EXPECT_EQ(summary.ranks[place].seconds[PipelineWork::update], 2);
      EXPECT_EQ(summary.ranks[place].peak_bytes, 100 + static_cast<int64_t>(place));
    }
    EXPECT_NEAR(summary.utilization(), simulated.utilization(), 1e-6);
  });
}

TEST(StepRecordTest, RanksWithOneClockAreApartByIt) {
  const std::vector<std::vector<PipelineSpan>> given{{{.begin = 3, .end = 4}}, {{.begin = 1, .end = 2}}};
  auto spans = given;
  EXPECT_EQ(move_to_common_zero(spans, {10, 15}, /*share_clock=*/true, 0), 3);
  EXPECT_EQ(spans[0][0].begin, 0);
  EXPECT_EQ(spans[1][0].begin, 3);
  EXPECT_EQ(spans[1][0].end, 4);
  spans = given;
  EXPECT_EQ(move_to_common_zero(spans, {10, 15}, /*share_clock=*/true, 1), -2) << "3 s after 10 is 2 s before 15";
  EXPECT_EQ(spans[1][0].begin, 3);
}

TEST(StepRecordTest, RanksOfSeveralHostsLeaveTheBarrierTogether) {
  std::vector<std::vector<PipelineSpan>> spans{{{.begin = 3, .end = 4}}, {{.begin = 1, .end = 2}}};
  EXPECT_EQ(move_to_common_zero(spans, {10, 1e6}, /*share_clock=*/false, 0), 1);
  EXPECT_EQ(spans[0][0].begin, 2);
  EXPECT_EQ(spans[1][0].begin, 0);
}

TEST(StepRecordTest, CountsTheStepsOfEachRefresh) {
  std::vector<pipe::Extra> extras(4);
  for (size_t i = 0; i < extras.size(); ++i) {
    extras[i].taken_step = i < 2 ? 0 : 1;
    extras[i].serves_step = extras[i].taken_step + 2;
  }
  extras[3].rank = 1;
  extras[3].serves_step = 4;
  pipe::Filled filled;
  const auto extra = [](int number, int age) { return pipe::FilledItem{.extra = number, .age = age}; };
  const pipe::FilledItem item{.item = {pipe::Work::update}};
  filled.items = {{{extra(0, 0), item}, {extra(1, 0), item}, {extra(2, 0), item}},
                  {{extra(3, 1), item}, {item}, {item}}};
  EXPECT_EQ(refresh_steps(filled, extras, 0).mean, 2) << "both end in the second step";
  EXPECT_EQ(refresh_steps(filled, extras, 0).oldest, 2);
  EXPECT_EQ(refresh_steps(filled, extras, 1).mean, 3) << "from step 1 to step 0 of the next cycle of 3";
  EXPECT_EQ(refresh_steps(filled, extras, 1).oldest, 3);
}

}  // namespace
}  // namespace spillway::runtime
