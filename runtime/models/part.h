/// A model as parts, which a pipeline cuts it between.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/models/batch.h"

namespace spillway::runtime {

/// A piece of a model that no cut divides. It owns the submodules that it runs, so it works when the model is gone.
struct Part {
  std::string name;                  ///< `layer3`
  std::vector<int> reads = {};       ///< the earlier parts whose outputs it takes, in the order of `inputs`
  std::vector<std::string> modules;  ///< names in the model of the submodules and parameters that it uses
  /// Returns its output, [B, …]. Does not change the inputs. Only the first and the last part may read the batch.
  /// Throws c10::Error for other shapes than the model's.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs, const Batch& batch)> run;
};

/// Returns what part `i` of a chain reads.
inline std::vector<int> part_before(size_t i) {
  return i == 0 ? std::vector<int>() : std::vector{static_cast<int>(i) - 1};
}

}  // namespace spillway::runtime
