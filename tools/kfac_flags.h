/// The flags that describe second-order preconditioning.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "runtime/train_options.h"

namespace spillway::tools {

/// Flags as written; resolve() gives them their meaning.
struct KfacFlags {
  std::string strategy = "hybrid", grad_worker_frac = "auto", conv_factors = "auto";
  std::optional<double> damping;
  double kl_clip = 3e-5, kl_clip_steps = 10;

  /// `train` must outlive the parsing of `command`.
  void add(CLI::App& command, TrainOptions& train);
  /// Sets what `train` says of K-FAC, for a world of `world` ranks. Throws BadRequest.
  void resolve(TrainOptions& train, int world) const;
};

}  // namespace spillway::tools
