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

inline KfacOptions spread(Strategy strategy, double share = 1) {
  return {.strategy = strategy, .grad_worker_frac = share};
}

}  // namespace spillway::kfac
