// Tests that train every model in every way, once with everything evicted after every operator, once with schemas
// checked.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "core/device/cpu_device.h"
#include "kfac/kfac.h"
#include "runtime/data/open_dataset.h"
#include "runtime/io/weights_sha256.h"
#include "runtime/models/task.h"
#include "runtime/passes/autocast.h"
#include "runtime/passes/memory_format.h"
#include "swap/gate/operator_observer.h"
#include "swap/optim/matrix_optimizer.h"
#include "swap/optim/optimizer.h"
#include "swap/session.h"
#include "tests/support/checking_observers.h"

namespace spillway {
using namespace runtime;
using namespace swap;
namespace {

struct Way {
  const char* name;
  const char* model;
  const char* data;
  const char* optimizer = "sgd";
  std::optional<kfac::ConvFactors> kfac = std::nullopt;
  Amp amp = Amp::off;
  Layout layout = Layout::contiguous;
  double dropout = 0.1;  // bert-base's; without dropout, attention is another operator
  kfac::FactorDtype storage = kfac::FactorDtype::fp32;
  int64_t batch_elements = 0;  ///< K-FAC's; 0 as on a CPU
};

TaskOptions small(const Way& way) {
  TaskOptions options;
  options.unet3d.filters = 2;
  options.bp3d.filters = 3;
  options.resnet50 = {.classes = 4, .filters = 2};
  options.bert = {.layers = 1, .hidden = 16, .heads = 2, .intermediate = 24, .vocabulary = 150, .dropout = way.dropout};
  options.mlp.input = 16;
  options.autoencoder = {.input = 64, .hidden = 16, .layers = 2, .code = 3};
  return options;
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const std::vector<at::Tensor>& parameters) {
  constexpr int64_t kGroup = 16 << 10;
  if (name == "adam") return std::make_unique<Adam>(parameters, AdamOptions{.lr = 1e-3, .group_bytes = kGroup});
  if (name == "adamw") return std::make_unique<AdamW>(parameters, AdamOptions{.lr = 1e-3, .group_bytes = kGroup});
  if (name == "lamb") return std::make_unique<Lamb>(parameters, LambOptions{.lr = 1e-2, .group_bytes = kGroup});
  if (name == "muon" || name == "soap") {
    std::vector<at::Tensor> matrices, rest;
    for (const at::Tensor& parameter : parameters) (parameter.dim() >= 2 ? matrices : rest).push_back(parameter);
    std::vector<std::unique_ptr<Optimizer>> parts;
    if (name == "muon")
      parts.push_back(std::make_unique<Muon>(matrices, MuonOptions{.lr = 1e-2, .group_bytes = kGroup}));
    else
      parts.push_back(std::make_unique<Soap>(matrices, SoapOptions{.interval = 1, .group_bytes = kGroup}));
    parts.push_back(std::make_unique<AdamW>(rest, AdamOptions{.lr = 1e-3, .group_bytes = kGroup}));
    return std::make_unique<CombinedOptimizer>(parameters, std::move(parts));
  }
  return std::make_unique<Sgd>(parameters, SgdOptions{.lr = 0.05, .nesterov = name == "nesterov"});
}

Batch two_cases(const Way& way, const TaskOptions& options) {
  auto data = open_dataset(way.model, way.data, {.cases = 4, .classes = 4, .vocabulary = options.bert.vocabulary});
  Batch batch = gather(*data, {0, 1});
  batch.input = batch.input.contiguous(memory_format(way.layout, batch.input.dim()));
  return batch;
}

kfac::KfacOptions kfac_options(const Way& way) {
  return {.lr = 0.05,
          .factor_interval = 1,
          .inverse_interval = 2,
          .conv_factors = *way.kfac,
          .max_factor_dim = *way.kfac == kfac::ConvFactors::block ? 60 : 1024,
          .storage = way.storage,
          .batch_elements = way.batch_elements};
}

std::vector<double> train(const Way& way, const std::shared_ptr<OperatorObserver>& observer, std::string& weights) {
  CpuDevice::instance();
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  const TaskOptions options = small(way);
  const Batch batch = two_cases(way, options);
  at::manual_seed(9);
  std::optional<Session> session;
  if (observer) session.emplace(SessionOptions{.min_page_bytes = 1, .observer = observer});
  auto task = make_task(way.model, options);
  to_memory_format(task->module(), way.layout);
  auto optimizer = make_optimizer(way.optimizer, task->module().parameters());
  std::optional<kfac::Kfac> kfac;
  if (way.kfac) kfac.emplace(task->module(), kfac_options(way));
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) {
    at::Tensor loss;
    {
      Autocast autocast(way.amp);
      loss = task->loss(batch);
    }
    if (kfac) kfac->watch(loss, batch.input.size(0));
    loss.backward();
    if (kfac) kfac->step();
    optimizer->clip_gradients(1);
    optimizer->step();
    optimizer->zero_grad();
    losses.push_back(loss.item<double>());
  }
  Autocast autocast(way.amp);
  losses.push_back(task->metric(batch));
  weights = weights_sha256(task->module());
  return losses;
}

struct EvictModelsTest : ::testing::TestWithParam<Way> {};

TEST_P(EvictModelsTest, TrainsToTheSameBitsAndNoSchemaLies) {
  std::string plain, again, paged, checked;
  const auto losses = train(GetParam(), nullptr, plain);
  EXPECT_EQ(losses, train(GetParam(), nullptr, again)) << "not even without a Session";
  EXPECT_EQ(plain, again);
  EXPECT_EQ(losses, train(GetParam(), std::make_shared<testing::EvictEverything>(), paged));
  EXPECT_EQ(plain, paged);
  auto checker = std::make_shared<testing::SchemaChecker>();
  EXPECT_EQ(losses, train(GetParam(), checker, checked));
  EXPECT_TRUE(checker->liars().empty()) << *checker->liars().begin();
  EXPECT_GT(checker->compared(), 100u);
}

using kfac::ConvFactors;
constexpr Layout kLast = Layout::channels_last;

INSTANTIATE_TEST_SUITE_P(
    Models, EvictModelsTest,
    ::testing::Values(
        Way{"mlp", "mlp", "synthetic:16"},  //
        Way{"mlp_kfac", "mlp", "synthetic:16", "sgd", ConvFactors::full},
        Way{"autoencoder_kfac", "autoencoder", "synthetic:8", "sgd", ConvFactors::full},
        Way{"mlp_bf16", "mlp", "synthetic:16", "lamb", {}, Amp::bf16}, Way{"unet3d", "unet3d", "synthetic:32"},  //
        Way{"unet3d_kfac_full", "unet3d", "synthetic:32", "sgd", ConvFactors::full},
        Way{"unet3d_kfac_separable", "unet3d", "synthetic:32", "sgd", ConvFactors::separable},
        Way{.name = "unet3d_kfac_block_kept_in_fp16",
            .model = "unet3d",
            .data = "synthetic:32",
            .optimizer = "sgd",
            .kfac = ConvFactors::block,
            .storage = kfac::FactorDtype::fp16},
        Way{"unet3d_bf16_adamw", "unet3d", "synthetic:32", "adamw", {}, Amp::bf16},
        Way{"unet3d_channels_last_lamb", "unet3d", "synthetic:32", "lamb", {}, Amp::off, kLast},
        Way{"unet3d_kfac_bf16_channels_last", "unet3d", "synthetic:32", "sgd", ConvFactors::separable, Amp::bf16,
            kLast},
        Way{"unet3d_muon", "unet3d", "synthetic:32", "muon"},
        Way{"unet3d_channels_last_soap", "unet3d", "synthetic:32", "soap", {}, Amp::off, kLast},
        Way{"resnet50_muon", "resnet50", "synthetic:33", "muon"},
        Way{"bert_base_soap", "bert-base", "synthetic:20", "soap"}, Way{"bp3d_adam", "bp3d", "synthetic:8", "adam"},
        Way{"bp3d_kfac_separable", "bp3d", "synthetic:8", "nesterov", ConvFactors::separable},
        Way{"bp3d_bf16_lamb", "bp3d", "synthetic:8", "lamb", {}, Amp::bf16},
        Way{"bp3d_channels_last", "bp3d", "synthetic:8", "adamw", {}, Amp::off, kLast},
        Way{"resnet50_nesterov", "resnet50", "synthetic:33", "nesterov"},
        Way{"resnet50_kfac", "resnet50", "synthetic:33", "sgd", ConvFactors::full},
        Way{.name = "resnet50_kfac_in_batches",
            .model = "resnet50",
            .data = "synthetic:33",
            .kfac = ConvFactors::full,
            .batch_elements = 1 << 20},
        Way{.name = "unet3d_kfac_in_batches_bf16_channels_last",
            .model = "unet3d",
            .data = "synthetic:32",
            .kfac = ConvFactors::separable,
            .amp = Amp::bf16,
            .layout = kLast,
            .batch_elements = 1 << 20},
        Way{"resnet50_bf16_lamb", "resnet50", "synthetic:33", "lamb", {}, Amp::bf16},
        Way{"resnet50_channels_last_adam", "resnet50", "synthetic:33", "adam", {}, Amp::off, kLast},
        Way{"bert_base_adamw", "bert-base", "synthetic:20", "adamw"},
        Way{"bert_base_without_dropout", "bert-base", "synthetic:20", "adam", {}, Amp::off, Layout::contiguous, 0},
        Way{"bert_base_kfac", "bert-base", "synthetic:20", "sgd", ConvFactors::full},
        Way{"bert_base_bf16_lamb", "bert-base", "synthetic:20", "lamb", {}, Amp::bf16},
        Way{"bert_base_bf16_without_dropout",
            "bert-base",
            "synthetic:20",
            "sgd",
            {},
            Amp::bf16,
            Layout::contiguous,
            0}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace spillway
