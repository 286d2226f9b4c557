#include "runtime/planning/resnet_layers.h"

#include <array>
#include <cstdint>

#include "core/error.h"

namespace spillway::runtime {
namespace {

using kfac::LayerShape;

LayerShape convolution(int64_t out, int64_t in, int64_t kernel) {
  return {.kind = kfac::LayerKind::conv2d, .out = out, .in = in, .kernel = {kernel, kernel}, .bias = false};
}

struct Architecture {
  int depth;
  bool bottleneck;
  std::array<int, 4> blocks;
};
constexpr Architecture kArchitectures[]{
    {18, false, {2, 2, 2, 2}}, {50, true, {3, 4, 6, 3}}, {101, true, {3, 4, 23, 3}}, {152, true, {3, 8, 36, 3}}};

const Architecture& find(int depth) {
  for (const Architecture& known : kArchitectures)
    if (known.depth == depth) return known;
  throw BadRequest(str("there is no ResNet-", depth, " here; there are ResNet-18, 50, 101 and 152"));
}

}  // namespace

std::vector<LayerShape> resnet_layers(int depth) {
  const Architecture& architecture = find(depth);
  std::vector<LayerShape> layers{convolution(64, 3, 7)};
  int64_t in = 64, width = 64;
  for (const int blocks : architecture.blocks) {
    const int64_t out = architecture.bottleneck ? 4 * width : width;
    for (int block = 0; block < blocks; ++block) {
      layers.push_back(convolution(width, in, architecture.bottleneck ? 1 : 3));
      layers.push_back(convolution(width, width, 3));
      if (architecture.bottleneck) layers.push_back(convolution(out, width, 1));
      if (block == 0 && in != out) layers.push_back(convolution(out, in, 1));
      in = out;
    }
    width *= 2;
  }
  layers.push_back({.kind = kfac::LayerKind::linear, .out = 1000, .in = in, .bias = true});
  return layers;
}

}  // namespace spillway::runtime
