/// Trainings of a few steps on tiny data, whose checkpoints are in a scratch folder.
#pragma once
#include <ATen/Context.h>

#include <string>

#include "core/device/cpu_device.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "tests/runtime/files.h"

namespace spillway {

/// A scratch folder with the options of such trainings.
class ScratchTraining : public ScratchFolder {
 protected:
  /// Returns the options of six steps of two cases each. Trainings with them compute the same bits every time.
  TrainOptions options(const std::string& model = "mlp") const {
    CpuDevice::instance();
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    TrainOptions o;
    o.model.name = model;
    o.data.source = "synthetic:16";
    o.data.cases = 10;
    o.data.batch = 2;
    o.steps = 6;
    o.checkpoint.folder = (dir_ / "checkpoints").string();
    return o;
  }
};

/// Trains on one rank, and says nothing.
inline TrainResult run(const TrainOptions& options) {
  TrainListener silent;
  return train(options, {}, silent);
}

}  // namespace spillway
