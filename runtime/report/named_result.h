/// A run and its name.
#pragma once
#include <string>

#include "runtime/results/train_result.h"

namespace spillway {

/// A run to compare with the main one.
struct NamedResult {
  std::string name;  ///< name such as `adam` or `unlimited`
  TrainResult result;
};

}  // namespace spillway
