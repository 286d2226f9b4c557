/// The flags that describe a training run, shared by the commands that train.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/options/train_options.h"
#include "tools/cli/kfac_flags.h"

namespace spillway::tools {

/// Flags as written, and the options they mean.
struct TrainFlags {
  TrainOptions options;
  std::optional<int64_t> edge, cases, batch, filters, hidden, layers, classes;
  std::string shape, budget = "none", host_budget = "none", device = "auto", data;
  std::string gradient_bucket = "auto", gradient_buffer = "auto";
  bool no_overlap_gradients = false;
  std::string split = std::to_string(kDefaultSplitBytes >> 20) + "MiB";
  KfacFlags kfac;
  double lr = 0;
  std::optional<double> weight_decay;
  std::string optimizer, lr_decay;

  /// Adds the flags of model and data only, or all of them.
  void add_model_flags(CLI::App& command);
  void add_training_flags(CLI::App& command);
  /// Where pages go that left the device. add_training_flags has them already.
  void add_tier_flags(CLI::App& command);
  /// The options for a world of `world` ranks. Throws BadRequest.
  TrainOptions resolve(int world);

 private:
  void add_optimizer_flags(CLI::App& command);
  void add_checkpoint_flags(CLI::App& command);
  void add_gradient_flags(CLI::App& command);
  void resolve_model();
  void resolve_optimizer();
};

/// The flags of model and data that `options`, once resolved, came from: for another process that is to do the same.
std::vector<std::string> model_arguments(const TrainOptions& options);

}  // namespace spillway::tools
