/// The layers of ResNets, as numbers.
#pragma once
#include <vector>

#include "kfac/plan/layer_shape.h"

namespace spillway::runtime {

/// Returns the convolutions and the output layer of a ResNet for ImageNet (He et al., 2016, table 1). Allowed depths:
/// 18, 50, 101, 152. Throws BadRequest naming them.
std::vector<kfac::LayerShape> resnet_layers(int depth);

}  // namespace spillway::runtime
