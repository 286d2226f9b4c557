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
#include "runtime/models/task.h"
#include "runtime/pipeline/pipelined_model.h"

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
void on_ranks(int ranks, const char* schedule,
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
RankItems with_extras(const pipe::Program& program, std::mt19937& random, std::vector<double>& seconds) {
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
void set_times(RankItems& ranks, const pipe::Program& program, const pipe::Costs& costs,
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
  for (const char* schedule : {"gpipe", "1f1b", "interleaved"})
    for (double message : {0.0, 0.3}) {
      const pipe::Costs costs = random_costs(random, message);
      const uint32_t seed = random();
      on_ranks(4, schedule, [&](const std::shared_ptr<const Pipeline>& pipeline) {
        std::mt19937 same(seed);  // on all ranks
        std::vector<double> extra_seconds;
        RankItems expected = with_extras(pipeline->plan.program, same, extra_seconds);
        set_times(expected, pipeline->plan.program, costs, extra_seconds);
        const auto model = pipelined_model(pipeline, small_mlp(),
                                           {.clock = std::make_shared<VirtualPipelineClock>(costs, extra_seconds)});
        const auto& own = expected[static_cast<size_t>(pipeline->place)];
        std::vector<int> done;
        StepWork step = work();
        step.items = &own;
        step.run_extra = [&](const pipe::FilledItem& extra) { done.push_back(extra.extra); };
        model->learn(step);
        double extras = 0;
        std::vector<int> due;
        ASSERT_EQ(model->spans().size(), own.size());
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_EQ(model->spans()[i].item, own[i].item);
          EXPECT_EQ(model->spans()[i].extra, own[i].extra);
          EXPECT_NEAR(model->spans()[i].begin, own[i].begin, 1e-9) << schedule;
          EXPECT_NEAR(model->spans()[i].end, own[i].end, 1e-9) << schedule;
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
  on_ranks(2, "1f1b", [&](const std::shared_ptr<const Pipeline>& pipeline) {
    const auto model = pipelined_model(pipeline, small_mlp(), {.clock = std::make_shared<VirtualPipelineClock>(costs)});
    model->learn(work());
    const double waited = model->totals().wait;
    const std::vector<LineTotals> lines = model->line_totals();
    model->metric(batch(), Amp::off);
    model->loss(work());
    EXPECT_EQ(model->totals().wait, waited);
    EXPECT_GT(waited, 0);
    ASSERT_EQ(lines.size(), 2u);  // activations and errors
    for (size_t line = 0; line < lines.size(); ++line) {
      EXPECT_EQ(lines[line].bytes, kMicroBatches * 6 * 20 * 4) << "6 cases of 20 hidden units in float32";
      EXPECT_EQ(model->line_totals()[line].bytes, lines[line].bytes);
      EXPECT_EQ(model->line_totals()[line].waited, lines[line].waited);
    }
    EXPECT_NE(lines[0].line.is_error, lines[1].line.is_error);
  });
}

}  // namespace
}  // namespace spillway::runtime
