#include "runtime/pipeline/pipeline_executor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "pipe/schedules.h"
#include "pipe/simulate.h"
#include "runtime/models/task.h"
#include "tests/support/ddl/delayed_transport.h"
#include "tests/support/refusal.h"

namespace spillway::runtime {
namespace {

using testing::expect_refusal;
using enum PipelineSchedule;

/// A model and what it is trained on.
struct Case {
  std::string model;
  TaskOptions options;
  std::vector<Batch> batches;  // a micro-batch each
};

std::vector<Batch> batches(int count, const std::function<Batch()>& make) {
  at::manual_seed(11);
  std::vector<Batch> all;
  for (int i = 0; i < count; ++i) all.push_back(make());
  return all;
}

Case mlp(int micro_batches, int64_t layers = 7) {
  return {"mlp", {.mlp = {.input = 12, .hidden = 20, .layers = layers, .classes = 5}}, batches(micro_batches, [] {
            return Batch{at::rand({6, 12}), at::randint(5, {6}, at::kLong)};
          })};
}

Case resnet(int micro_batches) {
  return {"resnet50", {.resnet50 = {.classes = 4, .filters = 4}}, batches(micro_batches, [] {
            return Batch{at::rand({2, 3, 32, 32}), at::randint(4, {2}, at::kLong)};
          })};
}

Case bert(int micro_batches) {
  const BertOptions options{
      .layers = 3, .hidden = 16, .heads = 2, .intermediate = 32, .vocabulary = 20, .positions = 8, .dropout = 0};
  return {"bert-base", {.bert = options}, batches(micro_batches, [] {
            return Batch{at::randint(20, {3, 8}, at::kLong), at::randint(8, {3, 2, 2}, at::kLong)};
          })};
}

Case unet(int micro_batches) {
  return {"unet3d", {.unet3d = {.filters = 2, .depth = 4, .dropout = 0}}, batches(micro_batches, [] {
            return Batch{at::rand({1, 4, 16, 16, 16}), at::rand({1, 3, 16, 16, 16}).round()};
          })};
}

/// The outcome of a step: the loss, and gradients and buffers by name.
struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> tensors;
};

void add_tensors(const torch::nn::Module& module, Outcome& outcome) {
  for (const auto& parameter : module.named_parameters())
    outcome.tensors["gradient of " + parameter.key()] = parameter.value().grad().clone();
  for (const auto& buffer : module.named_buffers()) outcome.tensors[buffer.key()] = buffer.value().clone();
}

std::unique_ptr<Task> made(const Case& given, at::ScalarType type) {
  static std::mutex one_at_a_time;  // ranks on threads share the generator
  const std::lock_guard lock(one_at_a_time);
  at::manual_seed(3);
  auto task = make_task(given.model, given.options);
  task->module().to(type);
  return task;
}

std::vector<Batch> of_type(const Case& given, at::ScalarType type) {
  std::vector<Batch> all = given.batches;
  for (Batch& batch : all) {
    if (batch.input.is_floating_point()) batch.input = batch.input.to(type);
    if (batch.target.is_floating_point()) batch.target = batch.target.to(type);
  }
  return all;
}

StepWork work_on(const std::vector<Batch>& batches) {
  return {.micro_batches = std::ssize(batches), .batch = [&](int64_t i) { return batches[static_cast<size_t>(i)]; }};
}

Outcome on_one_rank(const Case& given, at::ScalarType type) {
  const auto model = whole_model(made(given, type));
  const auto batches = of_type(given, type);
  Outcome outcome{.loss = model->learn(work_on(batches)).item<double>(), .tensors = {}};
  add_tensors(model->module(), outcome);
  return outcome;
}

/// Throws the error that made the others fail.
void rethrow_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr of_others;
  for (const auto& error : errors) try {
      if (error) std::rethrow_exception(error);
    } catch (const ddl::CommError&) {
      of_others = error;
    }
  if (of_others) std::rethrow_exception(of_others);
}

/// Runs a body on each rank, with messages that are late now and then.
void on_ranks(int ranks, bool delayed, const std::function<void(const ddl::Comm&)>& body) {
  ddl::ThreadWorld world(std::vector<int>(static_cast<size_t>(ranks), 0));
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      auto wire = world.transport(rank);
      if (delayed) wire = std::make_unique<ddl::testing::DelayedTransport>(std::move(wire), 7 * rank + 1);
      try {
        body(ddl::make_comm(std::make_shared<ddl::Communicator>(std::move(wire))));
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  rethrow_cause(errors);
}

std::shared_ptr<const Pipeline> cut(const Case& given, at::ScalarType type, const PipelineOptions& options,
                                    const ddl::Comm& comm) {
  const auto task = made(given, type);
  return make_pipeline(options, std::ssize(given.batches), *task, of_type(given, type).front(), Amp::off, comm);
}

/// Called with a place, its part of the loss, and what its stages have.
using OfPlace = std::function<void(int place, double loss, const Outcome& own)>;

/// Trains a step on ranks.
void on_places(const Case& given, at::ScalarType type, const PipelineOptions& options, const OfPlace& of_place,
               bool delayed = false) {
  std::mutex mutex;
  on_ranks(static_cast<int>(options.ranks), delayed, [&](const ddl::Comm& comm) {
    const auto pipeline = cut(given, type, options, comm);
    const auto model = pipeline_executor(pipeline, made(given, type), {});
    const auto batches = of_type(given, type);
    const at::Tensor loss = model->learn(work_on(batches));
    bool has_loss = false;
    for (int direction = 0; direction < pipeline->plan.directions(); ++direction)
      has_loss = has_loss || pipeline->place == pipeline->place_of_last_stage(direction);
    EXPECT_EQ(loss.defined(), has_loss);
    model->sum_shared_gradients();
    Outcome own;
    add_tensors(model->module(), own);
    const std::lock_guard lock(mutex);
    of_place(pipeline->place, loss.defined() ? loss.item<double>() : 0, own);
  });
}

/// Trains a step on ranks, and gathers what all stages have.
Outcome on_pipeline(const Case& given, at::ScalarType type, const PipelineOptions& options, bool delayed = false) {
  Outcome outcome;
  on_places(
      given, type, options,
      [&](int, double loss, const Outcome& own) {
        outcome.loss += loss;
        for (const auto& [name, tensor] : own.tensors) outcome.tensors[name] = tensor;
      },
      delayed);
  return outcome;
}

/// Returns the case with the micro-batches that go through each direction of chimera's stages.
std::vector<Case> halves_of(const Case& given, int64_t ranks) {
  std::vector<Case> halves{given, given};
  halves[0].batches.clear();
  halves[1].batches.clear();
  const pipe::StepProgram program = pipe::chimera(static_cast<int>(ranks), static_cast<int>(given.batches.size()));
  for (size_t m = 0; m < given.batches.size(); ++m)
    halves[static_cast<size_t>(program.copy_of[m])].batches.push_back(given.batches[m]);
  return halves;
}

void expect_same(const Outcome& outcome, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(outcome.loss, expected.loss) << what;
  EXPECT_EQ(outcome.tensors.size(), expected.tensors.size()) << what;
  for (const auto& [name, tensor] : expected.tensors) {
    const auto found = outcome.tensors.find(name);
    ASSERT_NE(found, outcome.tensors.end()) << what << ": " << name;
    EXPECT_TRUE(found->second.equal(tensor)) << what << ": " << name;
  }
}

std::string describe(const Case& given, const PipelineOptions& options, at::ScalarType type) {
  return given.model + " over " + std::to_string(options.ranks) + " ranks by " + std::string(name(options.schedule)) +
         ", " + std::to_string(given.batches.size()) + " micro-batches, " + c10::toString(type);
}

TEST(PipelineExecutorTest, GradientsAreThoseOfOneRankBitForBit) {
  at::set_num_threads(1);
  for (const Case& given : {mlp(1), mlp(4), mlp(5), resnet(4), unet(2)})
    for (at::ScalarType type : {at::kFloat, at::kDouble}) {
      const Outcome expected = on_one_rank(given, type);
      for (int64_t ranks : {2, 3, 4})
        for (PipelineSchedule schedule : {gpipe, one_forward_one_backward, zero_bubble}) {
          const PipelineOptions options{.ranks = ranks, .schedule = schedule};
          expect_same(on_pipeline(given, type, options), expected, describe(given, options, type));
        }
    }
}

TEST(PipelineExecutorTest, SeveralStagesOfARankChangeNoBit) {
  at::set_num_threads(1);
  for (const Case& given : {mlp(4), resnet(4), unet(4)}) {
    const Outcome expected = on_one_rank(given, at::kFloat);
    for (int64_t ranks : {2, 4})
      for (int64_t chunks : {1, 2}) {
        const PipelineOptions options{.ranks = ranks, .schedule = interleaved, .chunks = chunks};
        expect_same(on_pipeline(given, at::kFloat, options), expected, describe(given, options, at::kFloat));
      }
  }
}

TEST(PipelineExecutorTest, StagesThatRunForwardAgainChangeNoBit) {
  at::set_num_threads(1);
  for (const Case& given : {mlp(4), resnet(4), unet(2)}) {
    const Outcome expected = on_one_rank(given, at::kFloat);
    for (PipelineSchedule schedule : {gpipe, one_forward_one_backward, zero_bubble}) {
      const PipelineOptions options{.ranks = 2, .schedule = schedule, .recompute = true};
      expect_same(on_pipeline(given, at::kFloat, options), expected, describe(given, options, at::kFloat));
    }
  }
}

TEST(PipelineExecutorTest, ChimeraIsTwoCopiesThatTakeHalfOfTheMicroBatchesEach) {
  at::set_num_threads(1);
  for (const Case& given : {mlp(4), mlp(8), resnet(4), unet(4)})
    for (int64_t ranks : {2, 4}) {
      const PipelineOptions options{.ranks = ranks, .schedule = chimera};
      const std::string what = describe(given, options, at::kFloat);
      const auto halves = halves_of(given, ranks);
      const Outcome down = on_one_rank(halves[0], at::kFloat), up = on_one_rank(halves[1], at::kFloat);
      std::vector<Outcome> at_place(static_cast<size_t>(ranks));
      double loss = 0;
      on_places(given, at::kFloat, options, [&](int place, double own_loss, const Outcome& own) {
        at_place[static_cast<size_t>(place)] = own;
        loss += own_loss;
      });
      EXPECT_EQ(loss, (down.loss + up.loss) / 2) << what;
      for (const auto& [name, expected] : down.tensors) {
        int holders = 0;
        for (const Outcome& own : at_place)
          if (const auto found = own.tensors.find(name); found != own.tensors.end()) {
            ++holders;
            EXPECT_TRUE(found->second.equal(expected) || found->second.equal(up.tensors.at(name))) << what << name;
          }
        EXPECT_EQ(holders, 2) << what << ": " << name;
      }
    }
}

TEST(PipelineExecutorTest, LateMessagesChangeNoBit) {
  at::set_num_threads(1);
  const Case given = mlp(8);
  const Outcome expected = on_one_rank(given, at::kFloat);
  for (PipelineSchedule schedule : {gpipe, one_forward_one_backward, interleaved, zero_bubble}) {
    const PipelineOptions options{.ranks = 4, .schedule = schedule};
    expect_same(on_pipeline(given, at::kFloat, options, /*delayed=*/true), expected, std::string(name(schedule)));
  }
}

TEST(PipelineExecutorTest, AWeightOfBothEndsGetsTheSumOfItsGradients) {
  at::set_num_threads(1);
  const Case given = bert(4);
  const Outcome expected = on_one_rank(given, at::kDouble);
  for (int64_t ranks : {2, 3, 5}) {
    const Outcome outcome = on_pipeline(given, at::kDouble, {.ranks = ranks});
    EXPECT_EQ(outcome.loss, expected.loss);
    for (const auto& [name, tensor] : expected.tensors)
      // The matrix of words is summed in another order.
      EXPECT_TRUE(outcome.tensors.at(name).allclose(tensor, 1e-12, 1e-12)) << name;
  }
}

TEST(PipelineExecutorTest, DropoutDependsOnNoCut) {
  Case given = bert(1);
  given.options.bert.dropout = 0.3;
  std::vector<Outcome> outcomes;
  for (int64_t first : {1, 2, 4}) {
    // One micro-batch: the second rank's dropout comes after the first one's, though they share a generator here.
    outcomes.push_back(on_pipeline(given, at::kFloat, {.ranks = 2, .cut = {first, 5 - first}}));
    EXPECT_EQ(outcomes.back().loss, outcomes.front().loss);
  }
}

TEST(PipelineExecutorTest, LossAndMetricWithoutGradientsAreThoseOfOneRank) {
  at::set_num_threads(1);
  const Case given = resnet(3);
  const auto whole = whole_model(made(given, at::kFloat));
  const auto batches = of_type(given, at::kFloat);
  const Batch one{batches[0].input.narrow(0, 0, 1), batches[0].target.narrow(0, 0, 1)};
  const auto metric = whole->metric(one, Amp::off);
  const auto loss = whole->loss(work_on(batches));
  on_ranks(3, false, [&](const ddl::Comm& comm) {
    const auto pipeline = cut(given, at::kFloat, {.ranks = 3}, comm);
    const auto model = pipeline_executor(pipeline, made(given, at::kFloat), {});
    const auto own_metric = model->metric(one, Amp::off);  // of a smaller batch than the training's
    const auto own_loss = model->loss(work_on(batches));
    EXPECT_EQ(own_metric.has_value(), pipeline->place == 2);
    if (!own_metric) return;
    EXPECT_EQ(own_metric, metric);
    EXPECT_EQ(own_loss, loss);
  });
}

TEST(PipelineExecutorTest, RunsAsTheSimulationSays) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> seconds(0.1, 2);
  for (PipelineSchedule schedule : {gpipe, one_forward_one_backward, interleaved, zero_bubble, chimera})
    for (int64_t ranks : {2, 4})
      for (double message : {0.0, 0.3}) {
        const Case given = mlp(8);
        const PipelineOptions options{.ranks = ranks, .schedule = schedule};
        pipe::Costs costs{.stages = {}, .message = message};
        for (int stage = 0; stage < 8; ++stage)
          costs.stages.push_back({seconds(random), seconds(random), seconds(random)});
        on_ranks(static_cast<int>(ranks), /*delayed=*/true, [&](const ddl::Comm& comm) {
          const auto pipeline = cut(given, at::kFloat, options, comm);
          const auto model = pipeline_executor(pipeline, made(given, at::kFloat),
                                               {.clock = std::make_shared<VirtualPipelineClock>(costs)});
          const auto batches = of_type(given, at::kFloat);
          model->learn(work_on(batches));
          const auto simulated = pipe::simulate(pipeline->plan.program, costs);
          const auto& expected = simulated.spans[static_cast<size_t>(pipeline->place)];
          ASSERT_EQ(model->spans().size() + 1, expected.size());  // without the update
          for (size_t i = 0; i < model->spans().size(); ++i) {
            EXPECT_EQ(model->spans()[i].item, expected[i].item);
            EXPECT_NEAR(model->spans()[i].begin, expected[i].begin, 1e-9)
                << name(schedule) << " " << pipe::describe(expected[i].item);
            EXPECT_NEAR(model->spans()[i].end, expected[i].end, 1e-9);
          }
        });
      }
}

TEST(PipelineExecutorTest, ARankHasTheWeightsOfItsStagesAlone) {
  const Case given = bert(2);
  on_ranks(2, false, [&](const ddl::Comm& comm) {
    const auto pipeline = cut(given, at::kFloat, {.ranks = 2, .cut = {2, 3}}, comm);
    const auto model = pipeline_executor(pipeline, made(given, at::kFloat), {});
    const auto names = model->module().named_parameters().keys();
    const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    EXPECT_TRUE(has("word.weight"));
    EXPECT_EQ(has("layer0.query.weight"), pipeline->place == 0);
    EXPECT_EQ(has("layer1.query.weight"), pipeline->place == 1);
    EXPECT_EQ(has("bias"), pipeline->place == 1);
  });
}

TEST(PipelineExecutorTest, ARankThatFailsEndsTheOthers) {
  const Case given = mlp(4);
  ddl::ThreadWorld world({0, 0});
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto comm = ddl::make_comm(world.communicator(rank));
        const auto pipeline = cut(given, at::kFloat, {.ranks = 2}, comm);
        const auto model = pipeline_executor(pipeline, made(given, at::kFloat), {});
        auto batches = of_type(given, at::kFloat);
        if (rank == 0) batches[2].input = at::rand({6, 3});  // of another shape
        model->learn(work_on(batches));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(errors[0].find("mat1 and mat2"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 0 gave up: was interrupted with messages under way"), std::string::npos) << errors[1];
}

TEST(PipelineExecutorTest, CutsThatDoNotFitAreRefusedByName) {
  const Case given = mlp(4, 3);  // four parts
  const auto task = made(given, at::kFloat);
  const auto profiles = profile_parts(*task, given.batches.front(), Amp::off);
  const auto plan = [&](const PipelineOptions& options, int64_t micro_batches = 4) {
    plan_pipeline(options, micro_batches, task->parts(), profiles, {});
  };
  expect_refusal([&] { plan({.ranks = 5}); }, {"[pipeline] 5 stages are asked for, and the model has 4 parts"});
  expect_refusal(
      [&] {
        plan({.ranks = 2, .cut = {1, 2}});
      },
      {"[pipeline] the cut is 1,2; allowed: 2 numbers of 1 and more, of 4 parts together"});
  expect_refusal([&] { plan({.ranks = 2, .cut = {4, 0}}); }, {"the cut is 4,0"});
  constexpr int64_t kWraps = int64_t{1} << 32;
  expect_refusal([&] { plan({.ranks = 2, .cut = {kWraps + 1, 3}}); }, {"the cut is 4294967297,3"});
  expect_refusal([&] { plan({.ranks = 2, .cut = {INT64_MAX, 5}}); }, {"the cut is 9223372036854775807,5"});
  expect_refusal([&] { plan({.ranks = 3, .schedule = chimera}); }, {"chimera has 3 ranks; allowed: even numbers"});
  expect_refusal([&] { plan({.ranks = 2, .schedule = interleaved}, 3); },
                 {"interleaved takes micro-batches in units of its ranks; 2 do not divide 3"});
}

TEST(PipelineExecutorTest, PartsThatMayNotStandAloneStayWithANeighbor) {
  const Case given = mlp(4, 5);  // six parts
  const auto task = made(given, at::kFloat);
  std::vector<PartProfile> profiles(6);
  const auto cut_with = [&](const std::vector<int>& dependent, int64_t ranks,
                            PipelineSchedule schedule = PipelineSchedule::gpipe) {
    for (size_t i = 0; i < profiles.size(); ++i) {
      profiles[i].output = {{6, 20}};
      profiles[i].forward_seconds = profiles[i].backward_seconds = 1;
      profiles[i].may_stand_alone =
          std::find(dependent.begin(), dependent.end(), static_cast<int>(i)) == dependent.end();
    }
    return plan_pipeline({.ranks = ranks, .schedule = schedule}, 4, task->parts(), profiles, {}).cut;
  };
  EXPECT_EQ(cut_with({}, 6), (std::vector<int>{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(cut_with({0}, 5), (std::vector<int>{2, 1, 1, 1, 1}));
  EXPECT_EQ(cut_with({0, 1, 5}, 3), (std::vector<int>{3, 1, 2}));
  EXPECT_EQ(cut_with({2, 3}, 4), (std::vector<int>{1, 3, 1, 1}));
  expect_refusal([&] { cut_with({0}, 6); },
                 {"6 stages are asked for, and only 5 of the model's 6 parts can be stages"});
  // A rank of chimera has stages of both ends, and one of them is enough.
  EXPECT_EQ(cut_with({0, 1, 2}, 2, chimera), (std::vector<int>{3, 3}));
  EXPECT_EQ(cut_with({0, 1, 2, 3}, 2, chimera), (std::vector<int>{3, 3}));
  expect_refusal([&] { cut_with({0, 1, 4, 5}, 4, chimera); }, {"4 stages are asked for, and only 2 of the model's 6"});
}

TEST(PipelineExecutorTest, RanksThatTheCutDoesNotDivideAreRefused) {
  const Case given = mlp(4);
  on_ranks(3, false, [&](const ddl::Comm& comm) {
    expect_refusal([&] { cut(given, at::kFloat, {.ranks = 2}, comm); },
                   {"the model is to be cut over 2 ranks, and there are 3; allowed: a divisor of the ranks"});
  });
}

}  // namespace
}  // namespace spillway::runtime
