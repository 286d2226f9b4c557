#include "runtime/models/bp3d.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "core/error.h"
#include "tests/runtime/models/small_models.h"

namespace spillway {
using namespace runtime;

TEST(Bp3dTest, HasTheParametersOfItsLevels) {
  // The layers have k³·in·out + out parameters: 1→128, three times 128→128, and the head 128→3 with k = 1.
  EXPECT_EQ(parameter_count(*Bp3d()), (27 * 128 + 128) + 3 * (27 * 128 * 128 + 128) + (128 * 3 + 3));
  EXPECT_EQ(parameter_count(*Bp3d()), 1'331'459);
}

TEST(Bp3dTest, GivesEveryVoxelAScoreForEachClass) {
  Bp3d net(Bp3dOptions{.in_channels = 2, .classes = 5, .filters = 4});
  EXPECT_EQ(net->forward(at::rand({2, 2, 8, 12, 16})).sizes(), at::IntArrayRef({2, 5, 8, 12, 16}));
}

TEST(Bp3dTest, IsItsLevelsOneAfterTheOther) {
  torch::manual_seed(1);
  Bp3d net(Bp3dOptions{.filters = 3});
  auto named = net->named_parameters();
  auto conv = [&](const at::Tensor& x, const std::string& name, int64_t padding) {
    return at::conv3d(x, named[name + ".weight"], named[name + ".bias"], 1, padding);
  };
  const at::Tensor input = at::randn({1, 1, 8, 8, 8});
  at::Tensor x = input;
  for (const char* level : {"down1", "down2"}) x = at::max_pool3d(conv(x, level, 1).relu(), 2, 2);
  for (const char* level : {"up1", "up2"}) {
    x = conv(x, level, 1).relu();
    for (int64_t d : {2, 3, 4}) x = x.repeat_interleave(2, d);
  }
  EXPECT_TRUE(at::allclose(net->forward(input), conv(x, "head", 0), 1e-5, 1e-6));
}

TEST(Bp3dTest, RefusesWhatItCannotHalveTwice) {
  Bp3d net(Bp3dOptions{.filters = 2});
  auto message = message_of([&] { net->forward(at::rand({1, 1, 8, 10, 8})); });
  EXPECT_NE(message.find("multiples of 4"), std::string::npos) << message;
  EXPECT_NE(message.find("10"), std::string::npos) << message;
  EXPECT_THROW(net->forward(at::rand({1, 2, 8, 8, 8})), c10::Error);
  EXPECT_NE(message_of([] { Bp3dOptions{.filters = 0}.validate(); }).find("filters"), std::string::npos);
  EXPECT_THROW(Bp3dOptions{.classes = 1}.validate(), BadRequest);
}

}  // namespace spillway
