#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/models/task.h"

namespace spillway::runtime {
namespace {

struct Case {
  const char* model;
  TaskOptions options;
  Batch batch;
};

/// Returns a small case of every model, without dropout.
std::vector<Case> every_model() {
  const auto words = at::ones({2, 5}, at::kLong), guesses = at::ones({2, 2, 3}, at::kLong);
  std::vector<Case> cases;
  cases.push_back(
      {"mlp", {.mlp = {.input = 8, .hidden = 16, .layers = 3}}, {at::rand({4, 8}), at::ones({4}, at::kLong)}});
  cases.push_back({"autoencoder",
                   {.autoencoder = {.input = 16, .hidden = 8, .layers = 2, .code = 2}},
                   {at::rand({3, 16}), at::empty({3, 0})}});
  cases.push_back({"bert-base",
                   {.bert = {.layers = 2, .hidden = 8, .heads = 2, .intermediate = 16, .vocabulary = 9, .dropout = 0}},
                   {words, guesses}});
  cases.push_back(
      {"resnet50", {.resnet50 = {.classes = 4, .filters = 2}}, {at::rand({2, 3, 33, 33}), at::ones({2}, at::kLong)}});
  cases.push_back({"bp3d", {.bp3d = {.filters = 2}}, {at::rand({1, 1, 8, 4, 4}), at::ones({1, 8, 4, 4}, at::kLong)}});
  for (int64_t depth : {2, 4, 5})
    cases.push_back({"unet3d",
                     {.unet3d = {.filters = 2, .depth = depth, .dropout = 0}},
                     {at::rand({1, 4, 16, 16, 16}), at::ones({1, 3, 16, 16, 16})}});
  return cases;
}

/// Runs the parts one after another and returns the last one's output.
at::Tensor run_parts(const std::vector<Part>& parts, const Batch& batch) {
  std::vector<at::Tensor> outputs;
  for (const Part& part : parts) {
    std::vector<at::Tensor> inputs;
    for (int read : part.reads) inputs.push_back(outputs.at(static_cast<size_t>(read)));
    outputs.push_back(part.run(inputs, batch));
  }
  return outputs.back();
}

TEST(PartsTest, ComputeTheModelsOutputAndGradients) {
  for (const auto& [model, options, batch] : every_model()) {
    auto task = make_task(model, options);
    const at::Tensor whole = task->forward(batch);
    task->objective()->loss(whole, batch).backward();
    std::vector<at::Tensor> gradients;
    for (at::Tensor& parameter : task->module().parameters()) {
      gradients.push_back(parameter.grad().clone());
      parameter.mutable_grad().reset();
    }
    const at::Tensor by_parts = run_parts(task->parts(), batch);
    EXPECT_TRUE(by_parts.equal(whole)) << model;
    task->objective()->loss(by_parts, batch).backward();
    size_t i = 0;
    for (const auto& parameter : task->module().named_parameters())
      EXPECT_TRUE(parameter.value().grad().equal(gradients[i++])) << model << " " << parameter.key();
  }
}

TEST(PartsTest, EveryParameterAndBufferIsOfAPart) {
  for (const auto& [model, options, batch] : every_model()) {
    auto task = make_task(model, options);
    const auto parts = task->parts();
    const auto is_of_a_part = [&](const std::string& name) {
      return std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
        return std::any_of(part.modules.begin(), part.modules.end(),
                           [&](const std::string& module) { return name == module || name.starts_with(module + "."); });
      });
    };
    for (const auto& parameter : task->module().named_parameters())
      EXPECT_TRUE(is_of_a_part(parameter.key())) << model << " " << parameter.key();
    for (const auto& buffer : task->module().named_buffers())
      EXPECT_TRUE(is_of_a_part(buffer.key())) << model << " " << buffer.key();
  }
}

TEST(PartsTest, OnlyTheFirstAndTheLastReadTheBatch) {
  for (const auto& [model, options, batch] : every_model()) {
    const auto parts = make_task(model, options)->parts();  // they outlive the task
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < parts.size(); ++i) {
      std::vector<at::Tensor> inputs;
      for (int read : parts[i].reads) inputs.push_back(outputs.at(static_cast<size_t>(read)));
      const bool may_read = i == 0 || i + 1 == parts.size();
      EXPECT_NO_THROW(outputs.push_back(parts[i].run(inputs, may_read ? batch : Batch())))
          << model << " " << parts[i].name;
      EXPECT_EQ(outputs.back().size(0), batch.input.size(0)) << model << " " << parts[i].name;
    }
  }
}

TEST(PartsTest, ReadsComeFromEarlierParts) {
  for (const auto& [model, options, batch] : every_model()) {
    const auto parts = make_task(model, options)->parts();
    for (size_t i = 0; i < parts.size(); ++i)
      for (int read : parts[i].reads) EXPECT_LT(read, static_cast<int>(i)) << model;
  }
}

}  // namespace
}  // namespace spillway::runtime
