// Helpers that the tests of models share.
#pragma once
#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace spillway {

inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& p : module.parameters()) count += p.numel();
  return count;
}

}  // namespace spillway
