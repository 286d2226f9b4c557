#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/error.h"
#include "runtime/models/task.h"
#include "runtime/training/training_run.h"

namespace spillway::runtime {
namespace {

/// The names of the parameters that have state of the kind `kind`.
std::set<std::string> with_state(const Optimizer& optimizer, const torch::nn::Module& module, std::string_view kind) {
  std::set<std::string> names;
  const auto parameters = module.named_parameters();
  for (const auto& [name, tensors] : optimizer.state())
    for (size_t i = 0; i < tensors.size(); ++i)
      if (name == kind && tensors[i].defined()) names.insert(parameters[i].key());
  return names;
}

std::set<std::string> matching(const torch::nn::Module& module, auto wanted) {
  std::set<std::string> names;
  for (const auto& parameter : module.named_parameters())
    if (wanted(parameter.key(), parameter.value())) names.insert(parameter.key());
  return names;
}

std::unique_ptr<Task> small_task(const std::string& model) {
  TaskOptions options;
  options.unet3d.filters = 2;
  options.resnet50 = {.classes = 4, .filters = 2};
  options.bert = {.layers = 1, .hidden = 16, .heads = 2, .intermediate = 24, .vocabulary = 150};
  options.mlp.input = 16;
  return make_task(model, options);
}

TrainOptions with(const std::string& model, OptimizerKind kind, OptimizerKind rest) {
  TrainOptions options;
  options.model.name = model;
  options.optimizer.kind = kind;
  options.optimizer.rest = {rest, 0.05};
  return options;
}

TEST(MakeOptimizerTest, TheRestOfKfacIsWhatItDoesNotPrecondition) {
  const auto task = small_task("unet3d");
  const kfac::Kfac kfac(task->module(), {.skip = {"^head"}});
  const auto optimizer = make_optimizer(with("unet3d", OptimizerKind::sgd, OptimizerKind::adam), task->module(), &kfac);
  const auto rest = matching(task->module(), [](const std::string& name, const at::Tensor&) {
    return name.starts_with("head") || name.find("norm") != std::string::npos;
  });
  EXPECT_GT(rest.size(), 10u);
  EXPECT_EQ(with_state(*optimizer, task->module(), "variance"), rest);
  EXPECT_EQ(with_state(*optimizer, task->module(), "momentum").size() + rest.size(), optimizer->parameters().size());
}

TEST(MakeOptimizerTest, MuonLeavesVectorsEmbeddingsAndTheOutputToAdamW) {
  const auto expect = [](const std::string& model, const std::set<std::string>& matrices_of_rest) {
    const auto task = small_task(model);
    const auto optimizer =
        make_optimizer(with(model, OptimizerKind::muon, OptimizerKind::adamw), task->module(), nullptr);
    EXPECT_EQ(with_state(*optimizer, task->module(), "variance"),
              matching(task->module(), [&](const std::string& name, const at::Tensor& parameter) {
                return parameter.dim() < 2 || matrices_of_rest.contains(name);
              }));
  };
  expect("bert-base", {"word.weight", "position.weight", "segment.weight"});
  expect("resnet50", {"fc.weight"});
  expect("unet3d", {"head0.weight", "head1.weight", "head2.weight"});
  expect("mlp", {});
}

TEST(MakeOptimizerTest, AStageWithoutHiddenMatricesStepsAtTheRateOfTheRest) {
  const auto step_of = [](double lr, double rest_lr) {
    at::manual_seed(3);
    torch::nn::Embedding stage(5, 4);
    TrainOptions options = with("bert-base", OptimizerKind::muon, OptimizerKind::adamw);
    options.optimizer.lr = 0.02;
    options.optimizer.rest->lr = rest_lr;
    options.pipeline.ranks = 2;
    const auto optimizer = make_optimizer(options, *stage, nullptr);
    optimizer->set_lr(lr);  // a training sets the main optimizer's lr before each step
    stage->weight.mutable_grad() = at::ones({5, 4});
    const at::Tensor before = stage->weight.detach().clone();
    optimizer->step();
    return (before - stage->weight.detach()).abs().max().item<double>();
  };
  EXPECT_NEAR(step_of(0.02, 0.0001), 0.0001, 0.00001);
  EXPECT_NEAR(step_of(0.01, 0.0001), 0.00005, 0.000005) << "half the schedule's lr";
  EXPECT_NEAR(step_of(0.02, 0.02), 0.02, 0.002);
}

TEST(MakeOptimizerTest, WithoutARestOneOptimizerHasAllParameters) {
  const auto task = small_task("mlp");
  TrainOptions options;
  options.model.name = "mlp";
  const auto optimizer = make_optimizer(options, task->module(), nullptr);
  EXPECT_EQ(with_state(*optimizer, task->module(), "variance").size(), task->module().parameters().size());
}

TEST(MakeOptimizerTest, OptionsNameWhatDoesNotGoTogether) {
  const auto refused = [](const TrainOptions& options, const std::string& part) {
    try {
      options.validate();
      ADD_FAILURE() << "took " << part;
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  using enum OptimizerKind;
  refused(with("mlp", adam, adamw), "rest_optimizer is adamw; allowed is none");
  refused(with("mlp", muon, soap), "rest_optimizer is soap; allowed is sgd, adam, adamw or lamb");
  TrainOptions options = with("mlp", muon, adamw);
  options.validate();
  options.optimizer.rest->lr = 0;
  refused(options, "rest_lr is 0");
  options.optimizer.rest.reset();
  refused(options, "optimizer is muon, which is for matrices");
  options = with("mlp", soap, adamw);
  options.kfac.enabled = true;
  refused(options, "optimizer is soap; allowed with K-FAC are sgd, adam, adamw and lamb");
}

}  // namespace
}  // namespace spillway::runtime
