/// The seam to languages whose functions run layers again while backward runs.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::autograd {
struct Node;
}

namespace spillway::kfac {

/// Looks at an opaque node of a watched graph: a function of the user's or of a compiler. When the node's backward will
/// run layers again and go back through them, it arranges that `watch` is called with their outputs before that.
using RerunFinder =
    std::function<void(torch::autograd::Node& node, const std::function<void(at::TensorList outputs)>& watch)>;

}  // namespace spillway::kfac
