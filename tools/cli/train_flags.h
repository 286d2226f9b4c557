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

/// The flags as written, and the options that they mean.
struct TrainFlags {
  TrainOptions options;
  std::optional<int64_t> edge, cases, batch, filters, hidden, layers, classes;
  std::string shape, budget = "none", host_budget = "none", device = "auto", data;
  std::string gradient_bucket = "auto", gradient_buffer = "auto";
  bool no_overlap_gradients = false;
  std::string split = "auto";
  KfacFlags kfac;
  std::optional<double> lr, rest_lr, momentum, weight_decay;
  std::string optimizer, rest_optimizer, lr_decay, engine = "gate", amp = "off", memory_format = "contiguous";
  std::string schedule = "1f1b", refresh = "rolling", kfac_work = "bubbles";

  /// Adds the flags of model and data only; add_training_flags() adds all further ones.
  void add_model_flags(CLI::App& command);
  void add_training_flags(CLI::App& command);
  /// Adds the flags of models that are cut over ranks.
  void add_pipeline_flags(CLI::App& command);
  /// Adds the flags of the tiers where pages go that left the device. add_training_flags() adds them too.
  void add_tier_flags(CLI::App& command);
  /// Returns the options for a world of `world` ranks. Throws BadRequest.
  TrainOptions resolve(int world);

 private:
  void add_device_flags(CLI::App& command);
  void add_run_flags(CLI::App& command);
  void add_optimizer_flags(CLI::App& command);
  void add_rest_flags(CLI::App& command);
  void add_precision_flags(CLI::App& command);
  void add_checkpoint_flags(CLI::App& command);
  void add_gradient_flags(CLI::App& command);
  void resolve_model();
  void resolve_optimizer();
  void resolve_rest();
};

/// Returns the flags of model and data that `options`, once resolved, came from. Another process that gets them does
/// the same.
std::vector<std::string> model_arguments(TrainOptions options);

}  // namespace spillway::tools
