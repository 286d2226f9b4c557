/// Layer shapes as numbers, for tests of plans.
#pragma once
#include <vector>

#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

inline LayerShape linear(int64_t out, int64_t in, bool bias = false) {
  LayerShape shape;
  shape.out = out;
  shape.in = in;
  shape.bias = bias;
  return shape;
}

inline LayerShape conv3(int64_t out, int64_t in, int64_t groups, bool bias, bool separable) {
  auto shape = linear(out, in, bias);
  shape.kind = LayerKind::conv3d;
  shape.kernel = {3, 3, 3};
  shape.groups = groups;
  shape.separable = separable;
  return shape;
}

inline LayerShape conv2(int64_t out, int64_t in, int64_t kernel) {
  auto shape = linear(out, in);
  shape.kind = LayerKind::conv2d;
  shape.kernel = {kernel, kernel};
  return shape;
}

/// Returns the layers of a ResNet (He et al. 2016) for ImageNet: a 7×7 stem, four stages, 1000 classes. With `basic` a
/// block has two 3×3 convolutions (ResNet-18). Otherwise it is a bottleneck 1×1, 3×3, 1×1 that widens four times. A
/// stage's first block projects where widths differ.
inline std::vector<LayerShape> resnet(const std::vector<int>& blocks, bool basic = false) {
  std::vector<LayerShape> layers{conv2(64, 3, 7)};
  int64_t in = 64, width = 64;
  for (int count : blocks) {
    const int64_t out = basic ? width : 4 * width;
    for (int block = 0; block < count; ++block) {
      if (basic) {
        layers.push_back(conv2(width, in, 3));
        layers.push_back(conv2(width, width, 3));
      } else {
        layers.push_back(conv2(width, in, 1));
        layers.push_back(conv2(width, width, 3));
        layers.push_back(conv2(out, width, 1));
      }
      if (block == 0 && in != out) layers.push_back(conv2(out, in, 1));
      in = out;
    }
    width *= 2;
  }
  layers.push_back(linear(1000, in, true));
  return layers;
}

inline std::vector<LayerShape> resnet18() {
  return resnet({2, 2, 2, 2}, true);
}
inline std::vector<LayerShape> resnet50() {
  return resnet({3, 4, 6, 3});
}
inline std::vector<LayerShape> resnet101() {
  return resnet({3, 4, 23, 3});
}
inline std::vector<LayerShape> resnet152() {
  return resnet({3, 8, 36, 3});
}

inline KfacOptions spread(Strategy strategy, double share = 1) {
  return {.strategy = strategy, .grad_worker_frac = share};
}

}  // namespace spillway::kfac
