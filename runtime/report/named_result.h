/// A run and its name.
#pragma once
#include <string>

#include "runtime/results/train_result.h"

namespace spillway {

/// A run to set beside the main one.
struct NamedResult {
  std::string name;  ///< as in `adam`, `unlimited`
  TrainResult result;
};

}  // namespace spillway
