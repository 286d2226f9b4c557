/// The flags that describe a training run, shared by the commands that train.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "runtime/train_options.h"

namespace spillway::tools {

/// Flags as written, and the options they mean.
struct TrainFlags {
  TrainOptions options;
  int64_t edge = 0;
  std::string shape, budget = "none", host_budget = "none", device = "auto", data;
  std::string strategy = "hybrid", grad_worker_frac = "auto", conv_factors = "auto";
  double lr = 0, damping = 0;
  std::string optimizer;

  /// Adds the flags of model and data only, or all of them.
  void add_model_flags(CLI::App& command);
  void add_training_flags(CLI::App& command);
  /// Where pages go that left the device. add_training_flags has them already.
  void add_tier_flags(CLI::App& command);
  /// The options for a world of `world` ranks. Throws BadRequest.
  TrainOptions resolve(int world);
};

}  // namespace spillway::tools
