#include "runtime/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "core/cpu_allocator.h"
#include "ddl/collectives.h"
#include "ddl/thread_world.h"
#include "runtime/tensor_file.h"
#include "runtime/train.h"
#include "swap/session.h"
#include "tests/runtime/files.h"

namespace spillway {
namespace {

using Path = std::filesystem::path;

std::string bytes_of(const Path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const Path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

class TensorFileTest : public ScratchFolder {
 protected:
  Path file() const { return dir_ / "some.safetensors"; }
  void write(const std::vector<std::pair<std::string, at::Tensor>>& tensors) const {
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    TensorFileWriter writer(file(), entries, {{"who", "a test"}});
    for (const auto& [name, tensor] : tensors) writer.write(tensor);
    writer.commit();
  }
};

class CheckpointTest : public ScratchFolder {
 protected:
  TrainOptions options(const std::string& model = "mlp") const {
    CpuDevice::instance();
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    TrainOptions o;
    o.model = model;
    o.data = "synthetic:16";
    o.cases = 10;
    o.batch = 2;
    o.steps = 6;
    o.checkpoint = (dir_ / "checkpoints").string();
    return o;
  }
  Path file() const { return checkpoint_file(dir_ / "checkpoints"); }
};

TrainResult run(const TrainOptions& options) {
  TrainListener silent;
  return train(make_context(options, {}), silent);
}

/// Interrupted after its third step, then resumed.
void expect_resumed_equals_whole(TrainOptions options) {
  TrainOptions whole = options;
  whole.checkpoint.clear();
  const TrainResult expected = run(whole);

  TrainRequests requests;
  struct Interrupter : TrainListener {
    TrainRequests* requests;
    void on_step(int64_t step, int64_t, const StepOutcome&, int64_t) override { requests->stop = step == 2; }
  } listener;
  listener.requests = &requests;
  const TrainResult first = train(make_context(options, {}), listener, &requests);
  ASSERT_EQ(first.losses.size(), 3u);

  options.resume = true;
  const TrainResult second = run(options);
  EXPECT_EQ(second.resumed_from_step, 3);
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, expected.losses);
  EXPECT_EQ(second.weights_sha256, expected.weights_sha256);
  EXPECT_EQ(second.metric.back().value, expected.metric.back().value);
  EXPECT_EQ(second.learning_rates.back(), expected.learning_rates.back());
}

}  // namespace

TEST_F(TensorFileTest, GivesBackEveryTypeShapeAndLayout) {
  at::manual_seed(1);
  const std::vector<std::pair<std::string, at::Tensor>> tensors{
      {"float", at::randn({3, 5})},
      {"double", at::randn({7}, at::kDouble)},
      {"bf16", at::randn({2, 2}).to(at::kBFloat16)},
      {"half", at::randn({3}).to(at::kHalf)},
      {"long", at::arange(4)},
      {"byte", at::arange(3).to(at::kByte)},
      {"bool", at::tensor({1, 0}).to(at::kBool)},
      {"scalar", at::full({}, 2.5)},
      {"empty", at::zeros({0, 3})},
      {"transposed", at::randn({4, 6}).t()},
      {"channels last", at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)}};
  write(tensors);
  TensorFileReader reader(file());
  EXPECT_EQ(reader.metadata().at("who"), "a test");
  for (const auto& [name, tensor] : tensors) {
    at::Tensor back = at::empty_like(tensor);
    if (name == "long") back = at::zeros({2, 4}, at::kLong).select(0, 1);
    reader.read(name, back);
    EXPECT_TRUE(at::equal(back, tensor)) << name;
    EXPECT_EQ(back.strides(), at::empty_like(tensor).strides()) << name;
  }
}

TEST_F(TensorFileTest, IsWhatOthersCallSafetensors) {
  write({{"weight", at::tensor({1.f, 2.f})}, {"steps", at::tensor({7}, at::kLong)}});
  const std::string bytes = bytes_of(file());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["weight"]["dtype"], "F32");
  EXPECT_EQ(header["weight"]["shape"], std::vector<int>({2}));
  EXPECT_EQ(header["weight"]["data_offsets"], std::vector<int>({0, 8}));
  EXPECT_EQ(header["steps"]["data_offsets"], std::vector<int>({8, 16}));
  float second = 0;
  std::memcpy(&second, bytes.data() + 8 + length + 4, 4);
  EXPECT_EQ(second, 2);
}

TEST_F(TensorFileTest, NamesWhatIsMissingOrOfAnotherShape) {
  write({{"weight", at::ones({2, 3})}});
  TensorFileReader reader(file());
  expect_refusal([&] { reader.read("bias", at::ones({2})); }, {"some.safetensors", "has no 'bias'"});
  expect_refusal([&] { reader.read("weight", at::ones({3, 2})); }, {"weight", "[2, 3]", "[3, 2]"});
  expect_refusal([&] { reader.read("weight", at::ones({2, 3}, at::kDouble)); }, {"F32", "F64"});
  expect_refusal([&] { TensorFileReader(dir_ / "none"); }, {"there is no", "none"});
}

TEST_F(TensorFileTest, RefusesWhatIsCutShortAtAnyByte) {
  write({{"weight", at::ones({5})}, {"bias", at::ones({2})}});
  const std::string whole = bytes_of(file());
  for (size_t length = 0; length < whole.size(); ++length) {
    write_bytes(file(), whole.substr(0, length));
    EXPECT_THROW(TensorFileReader{file()}, BadRequest) << length << " of " << whole.size();
  }
  write_bytes(file(), whole + "x");
  expect_refusal([&] { TensorFileReader{file()}; }, {"bytes too many"});
}

TEST_F(TensorFileTest, FindsEveryDamagedByte) {
  write({{"weight", at::ones({5})}, {"bias", at::ones({2})}});
  const std::string whole = bytes_of(file());
  at::Tensor weight = at::empty({5}), bias = at::empty({2});
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_bytes(file(), damaged);
    auto read_all = [&] {
      TensorFileReader reader(file());
      reader.read("weight", weight);
      reader.read("bias", bias);
    };
    EXPECT_THROW(read_all(), BadRequest) << at << " of " << whole.size();
  }
}

TEST_F(TensorFileTest, TheFormerFileStaysUntilTheNewOneIsWhole) {
  write({{"weight", at::ones({2})}});
  const std::string former = bytes_of(file());
  {
    TensorFileWriter writer(file(), {{"weight", at::kFloat, {2}}, {"bias", at::kFloat, {1}}}, {});
    writer.write(at::zeros({2}));
    EXPECT_THROW(writer.write(at::zeros({2})), c10::Error);
    EXPECT_THROW(writer.commit(), c10::Error);
  }
  EXPECT_EQ(bytes_of(file()), former);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(TensorFileTest, AFullDiskIsAnErrorThatLeavesTheFormerFile) {
  write({{"weight", at::ones({2})}});
  const std::string former = bytes_of(file());
  struct rlimit limit {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit little { 4096, limit.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &little);
  EXPECT_THROW(write({{"weight", at::ones({1 << 14})}}), std::system_error);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(bytes_of(file()), former);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(TensorFileTest, PagesInOneTensorAtATime) {
  CpuDevice::instance();
  constexpr int64_t kEach = 1 << 20;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Session session({.budget_bytes = 3 * kEach, .small_page_bytes = 0});
  for (int i = 0; i < 8; ++i) tensors.emplace_back(std::to_string(i), at::full({kEach / 4}, i));
  write(tensors);
  for (auto& [name, tensor] : tensors) tensor.zero_();
  {
    TensorFileReader reader(file());
    for (auto& [name, tensor] : tensors) reader.read(name, tensor);
  }
  for (auto& [name, tensor] : tensors) EXPECT_TRUE(tensor.eq(std::stoi(name)).all().item<bool>()) << name;
  EXPECT_LE(session.stats().peak_bytes, 3 * kEach);
}

TEST_F(CheckpointTest, AResumedRunEqualsAnUninterruptedOne) {
  for (const char* optimizer : {"sgd", "adam", "adamw", "lamb"}) {
    TrainOptions o = options();
    o.optimizer = optimizer;
    o.warmup = 4;
    o.lr_decay = {{0.5, 1}};
    o.accumulate = 2;
    expect_resumed_equals_whole(o);
  }
}

TEST_F(CheckpointTest, SoDoesOneWithDropoutUnderABudget) {
  TrainOptions o = options("bert-base");
  o.layers = 1;
  o.hidden = 64;
  o.budget = BudgetRequest::parse("95%");
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, SoDoesOneWithRunningStatisticsAndChannelsLast) {
  TrainOptions o = options("resnet50");
  o.data = "synthetic:33";
  o.filters = 2;
  o.memory_format = "channels_last";
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, SoDoesOneWithKfacInTheMiddleOfItsIntervals) {
  TrainOptions o = options();
  o.use_kfac = true;
  o.optimizer = "sgd";
  o.lr = 0.1;
  o.kfac.burn_in = 1;
  o.kfac.factor_interval = 2;
  o.kfac.inverse_interval = 4;
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, SoDoesOneInFloat16WhoseLossScaleIsStillFallingAndWithStateIn16Bits) {
  for (double scale : {0x1p26, 4.0}) {  // left out until after the third step; and growing
    TrainOptions o = options();
    o.amp = "fp16";
    o.loss_scaling = {.initial = scale, .growth_interval = 2};
    o.use_kfac = true;
    o.optimizer = "sgd";
    o.lr = 0.1;
    o.kfac.factor_interval = o.kfac.inverse_interval = 2;
    o.kfac.storage = kfac::FactorDtype::bf16;
    expect_resumed_equals_whole(o);
    std::filesystem::remove_all(o.checkpoint);
  }
}

TEST_F(CheckpointTest, SoDoesOneWithEveryMethodOfKfacAndGrowingIntervals) {
  for (const auto& [method, outer] : {std::pair(kfac::Method::eigen, true), std::pair(kfac::Method::plain, false),
                                      std::pair(kfac::Method::pi, false)}) {
    TrainOptions o = options();
    o.use_kfac = true;
    o.optimizer = "sgd";
    o.lr = 0.1;
    o.kfac.method = method;
    o.kfac.precompute_outer = outer;
    o.kfac.convention = kfac::Convention::kaisa;
    o.kfac.burn_in = 1;
    o.kfac.factor_interval = o.kfac.inverse_interval = 2;
    o.damping_decay = {{0.5, 1}};
    o.interval_decay = {{1.5, 1}};
    expect_resumed_equals_whole(o);
    std::filesystem::remove_all(o.checkpoint);
  }
}

TEST_F(CheckpointTest, SoDoesOneWhileKfacDecomposesBesideTheSteps) {
  TrainOptions o = options();
  o.use_kfac = true;
  o.optimizer = "sgd";
  o.lr = 0.1;
  o.kfac.burn_in = 1;
  o.kfac.factor_interval = 1;
  o.kfac.inverse_interval = 2;
  o.kfac.staleness = 2;
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, IsWrittenEverySoManyStepsAndAtTheEnd) {
  TrainOptions o = options();
  o.checkpoint_every = 4;
  std::vector<int64_t> steps;
  struct Listener : TrainListener {
    std::function<void()> look;
    void on_step(int64_t, int64_t, const StepOutcome&, int64_t) override { look(); }
  } listener;
  listener.look = [&] {
    steps.push_back(std::filesystem::exists(file()) ? checkpoint_position(o.checkpoint, with_model_defaults(o)).step
                                                    : 0);
  };
  train(make_context(o, {}), listener);
  // A step is heard of before its checkpoint is written.
  EXPECT_EQ(steps, std::vector<int64_t>({0, 0, 0, 0, 4, 4}));
  EXPECT_EQ(checkpoint_position(o.checkpoint, with_model_defaults(o)).step, 6);
}

TEST_F(CheckpointTest, IsWrittenAfterTheStepInWhichSomebodyAsksForItAndTrainingGoesOn) {
  TrainOptions o = options();
  TrainRequests requests;
  std::vector<int64_t> steps;
  struct Listener : TrainListener {
    std::function<void(int64_t)> look;
    std::vector<std::string> decisions;
    void on_step(int64_t step, int64_t, const StepOutcome&, int64_t) override { look(step); }
    void on_decision(const std::string& text) override { decisions.push_back(text); }
  } listener;
  listener.look = [&](int64_t step) {
    const bool exists = !o.checkpoint.empty() && std::filesystem::exists(file());
    steps.push_back(exists ? checkpoint_position(o.checkpoint, with_model_defaults(o)).step : 0);
    if (step == 2) requests.checkpoint = true;
  };
  const auto said = [&](const std::string& text) {
    return std::count(listener.decisions.begin(), listener.decisions.end(), text);
  };
  const TrainResult asked = train(make_context(o, {}), listener, &requests);
  EXPECT_EQ(steps, std::vector<int64_t>({0, 0, 0, 3, 3, 3}));
  EXPECT_FALSE(asked.interrupted);
  EXPECT_EQ(said("step 3: wrote the checkpoint that was asked for"), 1);

  o.checkpoint.clear();
  EXPECT_EQ(train(make_context(o, {}), listener, &requests).weights_sha256, asked.weights_sha256);
  EXPECT_EQ(said("step 3: a checkpoint was asked for, but this run has no folder for it"), 1);
}

/// What is written is brought from wherever it is, on a disk that takes its time.
TEST_F(CheckpointTest, IsWaitedForBeyondTheDeadline) {
  using namespace std::chrono_literals;
  const TrainOptions run = options();
  prepare_checkpoint_folder(run.checkpoint);
  ddl::ThreadWorld world({0, 0});
  std::vector<std::string> errors(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        const auto comm = ddl::make_comm(world.communicator(rank, {.deadline = 400ms}));
        StateTensor slow("slow", at::kFloat, {3});
        slow.fetch = [rank] {
          if (rank == 0) std::this_thread::sleep_for(1500ms);
          return at::ones({3});
        };
        write_checkpoint(run.checkpoint, run, {.step = 1}, {slow}, comm);
        ddl::barrier(*comm->communicator);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  ranks.clear();
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST_F(CheckpointTest, AnotherRunsIsRefusedNamingWhatDiffers) {
  const TrainOptions o = options();
  run(o);
  auto refused = [&](const std::function<void(TrainOptions&)>& change, std::initializer_list<std::string> parts) {
    TrainOptions other = o;
    other.steps = 8;
    other.resume = true;
    change(other);
    expect_refusal([&] { run(other); }, parts);
  };
  refused([](TrainOptions& t) { t.batch = 3; }, {"checkpoint.safetensors", "batch 2", "has 3"});
  refused([](TrainOptions& t) { t.hidden = 32; }, {"hidden 64", "has 32"});
  refused([](TrainOptions& t) { t.optimizer = "sgd"; }, {"optimizer adam", "sgd"});
  refused([](TrainOptions& t) { t.seed = 1; }, {"seed 0"});
  refused([](TrainOptions& t) { t.device = "cuda"; }, {"device cpu", "has cuda"});
  refused([](TrainOptions& t) { t.use_kfac = true; }, {"kfac off"});
  TrainOptions second = o;
  second.use_kfac = true;
  second.checkpoint += "-kfac";
  run(second);
  const auto refused_with_kfac = [&](const std::function<void(TrainOptions&)>& change,
                                     std::initializer_list<std::string> parts) {
    refused(
        [&](TrainOptions& t) {
          t.use_kfac = true;
          t.checkpoint = second.checkpoint;
          change(t);
        },
        parts);
  };
  refused_with_kfac([](TrainOptions& t) { t.kfac.convention = kfac::Convention::kaisa; },
                    {"convention fisher", "kaisa"});
  refused_with_kfac([](TrainOptions& t) { t.kfac.strategy = kfac::Strategy::dp; },
                    {"statistics of all ranks", "of each layer's owner"});
  refused([](TrainOptions& t) { t.steps = 6; }, {"step 6", "nothing is left"});
  refused([](TrainOptions& t) { t.checkpoint += "-not"; }, {"there is no", "checkpoints-not"});
}

TEST_F(CheckpointTest, ForeignFilesAreRefused) {
  TrainOptions o = options();
  o.resume = true;
  std::filesystem::create_directories(file().parent_path());
  write_bytes(file(), "PK\3\4 some other program's file, long enough to have a header");
  expect_refusal([&] { run(o); }, {"checkpoint.safetensors", "is no safetensors file"});
  TensorFileWriter writer(file(), {{"weight", at::kFloat, {1}}}, {{"format", "pt"}});
  writer.write(at::ones({1}));
  writer.commit();
  expect_refusal([&] { run(o); }, {"checkpoint.safetensors", "is no checkpoint"});
}

TEST_F(CheckpointTest, ADamagedTensorEndsTheRunBeforeItsFirstStep) {
  TrainOptions o = options();
  run(o);
  std::string bytes = bytes_of(file());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  bytes[8 + length + 100] ^= 1;
  write_bytes(file(), bytes);
  o.resume = true;
  o.steps = 8;
  expect_refusal([&] { run(o); }, {"is damaged", "linear0"});
}

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsFoundBeforeTraining) {
  TrainOptions o = options();
  write_bytes(dir_ / "file", "not a folder");
  o.checkpoint = (dir_ / "file" / "checkpoints").string();
  int64_t steps = 0;
  struct Listener : TrainListener {
    int64_t* steps;
    void on_step(int64_t, int64_t, const StepOutcome&, int64_t) override { ++*steps; }
  } listener;
  listener.steps = &steps;
  EXPECT_THROW(train(make_context(o, {}), listener), std::system_error);
  EXPECT_EQ(steps, 0);
}

}  // namespace spillway
