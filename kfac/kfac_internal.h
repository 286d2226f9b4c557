/// What backward has shown of the layers of a Kfac, and how long its phases take.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "kfac/comm/overlapped_reduction.h"
#include "kfac/inverse/async_eigensolver.h"
#include "kfac/kfac.h"

namespace spillway::kfac {

/// Adds the wall seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

/// Shared with the hooks in the graph, which may outlive the Kfac and run on autograd's threads.
struct Kfac::Statistics {
  std::mutex mutex;
  std::vector<LayerFactors> layers;
  std::unique_ptr<EarlyReduction> early;  ///< with overlap_factors on several ranks
  double seconds = 0;

  void stage(const Captured& captured) {
    std::lock_guard lock(mutex);
    Stopwatch watch(seconds);
    layers[captured.layer].stage(captured);
    if (early) early->staged(captured.layer, layers);
  }
};

/// Decompositions beside the steps.
struct Kfac::Background {
  BackgroundSolver solver;  ///< one stack for each of owned_

  explicit Background(const Kfac& kfac) : solver(stacks(kfac)) {}

 private:
  static std::vector<MatrixStack> stacks(const Kfac& kfac);
};

}  // namespace spillway::kfac
