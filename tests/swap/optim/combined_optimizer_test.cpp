#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "swap/optim/optimizer.h"

namespace spillway {
namespace {

std::vector<at::Tensor> parameters() {
  at::manual_seed(1);
  std::vector<at::Tensor> tensors;
  for (int64_t n : {3, 40, 7, 16}) tensors.push_back(at::randn({n}).requires_grad_());
  return tensors;
}

void give_gradients(const std::vector<at::Tensor>& parameters, int64_t i) {
  for (const at::Tensor& p : parameters) p.mutable_grad() = (p.detach() * static_cast<double>(i + 1)).sin();
}

template <class... Parts>
CombinedOptimizer combined(const std::vector<at::Tensor>& parameters, Parts... parts) {
  std::vector<std::unique_ptr<Optimizer>> list;
  (list.push_back(std::move(parts)), ...);
  return {parameters, std::move(list)};
}

/// Sgd for the first and the third parameter, Adam for the others.
CombinedOptimizer make(const std::vector<at::Tensor>& p) {
  return combined(p, std::make_unique<Sgd>(std::vector<at::Tensor>{p[2], p[0]}, SgdOptions{.lr = 0.2}),
                  std::make_unique<Adam>(std::vector<at::Tensor>{p[1], p[3]}, AdamOptions{.lr = 0.05}));
}

TEST(CombinedOptimizerTest, EachPartUpdatesItsOwnParametersAtItsShareOfTheRate) {
  auto own = parameters(), theirs = parameters();
  CombinedOptimizer both = make(own);
  EXPECT_EQ(both.lr(), 0.2);
  Sgd sgd({theirs[0], theirs[2]}, {.lr = 0.2});
  Adam adam({theirs[1], theirs[3]}, {.lr = 0.05});
  for (int64_t i = 0; i < 4; ++i) {
    give_gradients(own, i);
    give_gradients(theirs, i);
    const double factor = i < 2 ? 1 : 0.5;
    both.set_lr(0.2 * factor);
    sgd.set_lr(0.2 * factor);
    adam.set_lr(0.05 * factor);
    both.step();
    sgd.step();
    adam.step();
  }
  for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i], theirs[i])) << i;
}

TEST(CombinedOptimizerTest, APartAloneFollowsTheRateOfAWholeModel) {
  auto own = parameters(), theirs = parameters();
  std::vector<std::unique_ptr<Optimizer>> parts;
  parts.push_back(std::make_unique<Adam>(own, AdamOptions{.lr = 0.05}));
  CombinedOptimizer one(own, std::move(parts), 0.2);
  EXPECT_EQ(one.lr(), 0.2);
  Adam adam(theirs, {.lr = 0.05});
  for (int64_t i = 0; i < 4; ++i) {
    give_gradients(own, i);
    give_gradients(theirs, i);
    const double factor = i < 2 ? 1 : 0.5;
    one.set_lr(0.2 * factor);
    adam.set_lr(0.05 * factor);
    one.step();
    adam.step();
  }
  for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i], theirs[i])) << i;
}

TEST(CombinedOptimizerTest, ARateOfZeroIsNoEnd) {
  auto own = parameters();
  CombinedOptimizer both = make(own);
  both.set_lr(0);
  both.set_lr(0.2);
  auto theirs = parameters();
  CombinedOptimizer other = make(theirs);
  for (auto [optimizer, p] : {std::pair(&both, &own), std::pair(&other, &theirs)}) {
    give_gradients(*p, 0);
    optimizer->step();
  }
  for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i], theirs[i])) << i;
}

TEST(CombinedOptimizerTest, StateIsInTheOrderOfTheParameters) {
  const auto p = parameters();
  CombinedOptimizer both = make(p);
  const auto state = both.state();
  std::vector<std::string> names;
  for (const OptimizerState& kind : state) {
    names.emplace_back(kind.name);
    ASSERT_EQ(kind.tensors.size(), p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      EXPECT_EQ(kind.tensors[i].defined(), (kind.name == "momentum") == (i % 2 == 0)) << kind.name << i;
      if (kind.tensors[i].defined() && kind.name != "steps") {
        EXPECT_EQ(kind.tensors[i].sizes(), p[i].sizes()) << kind.name << i;
      }
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"momentum", "mean", "variance", "steps"}));
}

TEST(CombinedOptimizerTest, ClipsTheNormOverAllParameters) {
  const auto own = parameters(), theirs = parameters();
  CombinedOptimizer both = make(own);
  Adam one(theirs, {});
  give_gradients(own, 1);
  give_gradients(theirs, 1);
  EXPECT_EQ(both.clip_gradients(0.5), one.clip_gradients(0.5));
  for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i].grad(), theirs[i].grad())) << i;
  both.zero_grad();
  for (const at::Tensor& parameter : own) EXPECT_FALSE(parameter.grad().defined());
}

TEST(CombinedOptimizerTest, SumsOfAllPartsAreShared) {
  const auto p = parameters();
  CombinedOptimizer both = combined(p, std::make_unique<Lamb>(std::vector<at::Tensor>{p[0], p[1]}, LambOptions{}),
                                    std::make_unique<Lamb>(std::vector<at::Tensor>{p[2], p[3]}, LambOptions{}));
  int calls = 0;
  both.share_sums([&](const at::Tensor&) { ++calls; });
  give_gradients(p, 0);
  both.step();
  EXPECT_EQ(calls, 2);
  both.clip_gradients(1);
  EXPECT_EQ(calls, 3);
}

TEST(CombinedOptimizerTest, RefusesPartsThatDoNotShareOutTheParameters) {
  const auto p = parameters();
  const auto sgd = [](const std::vector<at::Tensor>& own) { return std::make_unique<Sgd>(own, SgdOptions{}); };
  EXPECT_THROW(combined(p, sgd({p[0], p[1]}), sgd({p[2]})), c10::Error) << "one is left over";
  EXPECT_THROW(combined(p, sgd({p[0], p[1], p[2]}), sgd({p[2], p[3]})), c10::Error) << "one has two";
  EXPECT_THROW(combined({p[0], p[1]}, sgd({p[0]}), sgd({p[1], p[2]})), c10::Error) << "one is a stranger";
}

}  // namespace
}  // namespace spillway
