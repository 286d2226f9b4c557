/// Several optimizers that step as one.
#pragma once
#include <memory>
#include <optional>

#include "swap/optim/optimizer.h"

namespace spillway {

/// Optimizers of one model's parameters: Muon for matrices and AdamW for the rest, or Sgd for what K-FAC preconditions
/// and Adam for the rest. The parts' lr follow lr() in a fixed proportion.
class CombinedOptimizer final : public Optimizer {
 public:
  /// `parameters` gives the order of parameters() and state(). Throws c10::Error unless each of them belongs to exactly
  /// one part, and the parts have no others. `lr` is the lr that the parts' own ones belong to, by default the first
  /// part's. A rank that has only some of a model's parts gives the model's, because all ranks follow one schedule.
  CombinedOptimizer(const std::vector<at::Tensor>& parameters, std::vector<std::unique_ptr<Optimizer>> parts,
                    std::optional<double> lr = {});
  void step() override;
  void share_sums(const std::function<void(const at::Tensor&)>& share) override;
  void set_lr(double lr) override;
  /// Returns the states of all parts. A kind's tensor is undefined where a parameter's own part has no such kind.
  std::vector<OptimizerState> state() const override;

 private:
  void update(const std::vector<size_t>& group) override;
  std::vector<std::unique_ptr<Optimizer>> parts_;
  std::vector<double> relative_lr_;            // of each part, over lr()
  std::vector<std::vector<size_t>> position_;  // of each part's parameters in parameters()
};

}  // namespace spillway
