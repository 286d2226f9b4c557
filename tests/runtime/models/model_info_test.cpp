#include "runtime/models/model_info.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace spillway {
using namespace runtime;

TEST(ModelInfoTest, NamesTheKnownModelsWhenAskedForAnother) {
  EXPECT_EQ(model_names(), "unet3d, bp3d, resnet50, bert-base, mlp, autoencoder");
  for (const ModelInfo& model : known_models()) EXPECT_EQ(&model_info(model.name), &model);
  try {
    model_info("vgg");
    FAIL();
  } catch (const BadRequest& error) {
    EXPECT_STREQ(error.what(), "unknown model 'vgg'; known are: unet3d, bp3d, resnet50, bert-base, mlp, autoencoder");
  }
}

TEST(ModelInfoTest, EveryDefaultSizeCanBeTrainedOnByFourRanks) {
  for (const ModelInfo& model : known_models()) {
    EXPECT_NO_THROW(check_size(model, model.size)) << model.name;
    EXPECT_GE(model.cases - model.cases / 10, 4 * model.batch) << model.name;
  }
}

TEST(ModelInfoTest, RefusesSizesThatAModelCannotReadInItsWords) {
  auto refused = [](std::string_view model, int64_t size, std::string_view what) {
    try {
      check_size(model_info(model), size);
      ADD_FAILURE() << model << " took " << size;
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refused("bert-base", 513, "sequence length is 513; allowed is 8 to 512");
  refused("bert-base", 7, "sequence length is 7");
  refused("resnet50", 32, "edge is 32; allowed is 33");
  refused("mlp", 0, "number of features is 0");
  refused("autoencoder", 3, "edge is 3; allowed is 4");
}

}  // namespace spillway
