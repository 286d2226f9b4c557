/// The options of a small training with K-FAC, for dry runs.
#pragma once
#include "core/bytes.h"
#include "runtime/options/train_options.h"

namespace spillway {

inline TrainOptions small_options() {
  TrainOptions options;
  options.model.name = "unet3d";
  options.model.filters = 2;
  options.data.source = "synthetic:32";
  options.data.cases = 8;
  options.memory.split_bytes = kUnlimitedBytes;
  options.optimizer.kind = OptimizerKind::sgd;
  options.kfac.enabled = true;
  options.kfac.choose_grad_worker_frac = false;
  return options;
}

}  // namespace spillway
