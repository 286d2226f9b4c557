/// The flags that describe second-order preconditioning.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/options/train_options.h"

namespace spillway::tools {

/// The flags as written; resolve() gives them their meaning.
struct KfacFlags {
  std::string strategy = "hybrid", grad_worker_frac = "auto", conv_factors = "auto";
  std::string placement = "lpt-time", factor_dtype = "fp32", storage = "fp32", factor_samples = "auto";
  std::string kfac_rank = "auto";
  std::string method = "eigen", convention = "fisher", damping_decay, interval_decay;
  std::optional<int64_t> factor_interval;
  std::optional<std::string> inverse_interval, skip, time_share, plan_file, damping_scope;
  std::optional<double> relative_damping, damping, kl_clip, kl_clip_steps, norm_clip;
  std::vector<CLI::Option*> options;  ///< all of these, as CLI11 knows them

  /// Adds the flags. `train` must outlive the parsing of `command`.
  void add(CLI::App& command, TrainOptions& train);
  /// Sets the K-FAC options of `train`, for a world of `world` ranks. Throws BadRequest.
  void resolve(TrainOptions& train, int world) const;

 private:
  void refuse_without_effect(const TrainOptions& train) const;
  void resolve_interval(TrainOptions& train) const;
  void resolve_plan(TrainOptions& train) const;
  void resolve_step_size(TrainOptions& train) const;
  void add_plan(CLI::App& command);
  void add_intervals(CLI::App& command, kfac::KfacOptions& k);
  void add_distribution(CLI::App& command, kfac::KfacOptions& k);
  void add_method(CLI::App& command, kfac::KfacOptions& k);
  void add_damping(CLI::App& command, TrainOptions& train);
  void add_step_size(CLI::App& command);
  void add_layers(CLI::App& command, kfac::KfacOptions& k);
};

}  // namespace spillway::tools
