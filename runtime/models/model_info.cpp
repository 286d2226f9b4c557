#include "runtime/models/model_info.h"

#include "core/error.h"

namespace spillway::runtime {
namespace {

constexpr ModelInfo kModels[]{
    // K-FAC treats the positions of a layer as independent. At the heads of a soft Dice loss, all positions of a label
    // pull together, so such a step is too long by their number. The label then ends where it has no gradient any more.
    {.name = "unet3d",
     .input = InputKind::volumes,
     .size = 96,
     .filters = 16,
     .output = "^head",
     .kfac_lr = 1,
     .kfac_rest_lr = 0.05,
     .kfac_kl_clip = 1e-5,
     .kfac_kl_clip_steps = 10,
     .reads_folders = true},
    {.name = "bp3d",
     .input = InputKind::volumes,
     .size = 64,
     .batch = 8,
     .cases = 64,
     .filters = 128,
     .output = "^head"},
    // From 33 on, the last feature map is larger than 1×1. The variance of a 1×1 map over a batch of one would be zero.
    {.name = "resnet50",
     .input = InputKind::images,
     .size = 224,
     .smallest_size = 33,
     .batch = 16,
     .cases = 128,
     .filters = 64,
     .classes = 1000,
     .output = "^fc"},
    {.name = "bert-base",
     .input = InputKind::tokens,
     .size = 128,
     .smallest_size = 8,
     .largest_size = 512,
     .batch = 8,
     .cases = 256,
     .hidden = 768,
     .layers = 12},
    {.name = "mlp", .input = InputKind::vectors, .size = 32, .hidden = 64, .layers = 2, .classes = 10},
    {.name = "autoencoder",
     .input = InputKind::curves,
     .size = 28,
     .smallest_size = 4,
     .largest_size = 1024,
     .batch = 128,
     .cases = 4096,
     .hidden = 400,
     .layers = 5,
     .kfac_kl_clip = 1e-3},
};

const char* extent_name(InputKind input) {
  switch (input) {
    case InputKind::volumes:
    case InputKind::images:
    case InputKind::curves:
      return "edge";
    case InputKind::tokens:
      return "sequence length";
    case InputKind::vectors:
      break;
  }
  return "number of features";
}

}  // namespace

std::span<const ModelInfo> known_models() {
  return kModels;
}

std::string model_names() {
  std::string names;
  for (const ModelInfo& model : kModels) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

const ModelInfo& model_info(std::string_view name) {
  for (const ModelInfo& model : kModels)
    if (model.name == name) return model;
  throw BadRequest(str("unknown model '", name, "'; known are: ", model_names()));
}

void check_size(const ModelInfo& model, int64_t size) {
  if (size < model.smallest_size || size > model.largest_size)
    throw BadRequest(str(model.name, ": the ", extent_name(model.input), " is ", size, "; allowed is ",
                         model.smallest_size, " to ", model.largest_size));
}

}  // namespace spillway::runtime
