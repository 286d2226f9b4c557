/// Optimizers whose fused kernels take parameters in groups that fit, never all at once.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace spillway {

/// One kind of an optimizer's state, a tensor for each parameter.
struct OptimizerState {
  std::string_view name;            ///< `momentum`, `mean`, `variance`, `steps`
  std::vector<at::Tensor> tensors;  ///< in the order of the parameters; shared, not copied; undefined where
                                    ///< a parameter has none
};

/// Steps over all parameters group by group. A group's parameters, gradients and state are resident together; other
/// groups need not be. A parameter's update depends on no other parameter, so grouping changes no bit. State is
/// allocated when the optimizer is made, so that the first step needs the same memory as every step. While the
/// optimizer lives, its parameters are counted as weights, and gradients that backward accumulates into them are
/// counted as gradients.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates the parameters that have a gradient; the others stay as they are.
  virtual void step();
  /// Frees the gradients.
  void zero_grad();
  /// Multiplies all gradients by min(1, max_norm / (‖g‖ + 1e-6)), where ‖g‖ is the 2-norm over all of them, group by
  /// group. Returns ‖g‖. Cost: one host synchronization. Throws c10::Error unless max_norm is positive.
  /// Source: Pascanu et al. 2013, algorithm 1.
  double clip_gradients(double max_norm) { return clip_gradients(max_norm, gradient_norms()); }
  /// Clips as above, where ‖g‖ is the 2-norm of `norms`: those of this optimizer's gradients, and of others that are
  /// clipped with them.
  double clip_gradients(double max_norm, const at::Tensor& norms);
  /// Returns the 2-norm of each parameter's gradient, 0 where it has none [parameters], in float64.
  at::Tensor gradient_norms();
  /// Makes `share` overwrite what an update sums up from many numbers with one rank's values before it is used: norms,
  /// factors that scale steps, and the directions of matrix_optimizer.h. Otherwise ranks whose threads or processors
  /// split sums differently would take other steps. `share` is called equally often on every rank.
  virtual void share_sums(const std::function<void(const at::Tensor&)>& share) { share_sums_ = share; }
  double lr() const noexcept { return lr_; }
  virtual void set_lr(double lr) { lr_ = lr; }
  /// Returns each parameter once, where it was first given. A parameter that was given several times is updated once.
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  /// Returns all state that the next step depends on beside parameters, gradients and lr, in a fixed order.
  virtual std::vector<OptimizerState> state() const = 0;

 protected:
  /// Makes the groups. `tensors_per_parameter` counts the tensors of a parameter's size, state and temporaries, that a
  /// group needs beside parameter and gradient. Throws c10::Error for a parameter that is no leaf or does not require a
  /// gradient, and for an lr that is not positive.
  Optimizer(const std::vector<at::Tensor>& parameters, double lr, int64_t group_bytes, int64_t tensors_per_parameter);
  /// Updates the parameters of these indices; each has a gradient.
  virtual void update(const std::vector<size_t>& group) = 0;
  std::vector<at::Tensor> gather(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& group) const;
  /// Returns the gradients laid out like their parameters, because fused kernels walk raw memory.
  std::vector<at::Tensor> gradients(const std::vector<size_t>& group) const;
  /// Returns zeros like each parameter, counted as optimizer state.
  std::vector<at::Tensor> make_state() const;
  /// The reader of the numbers of updates: the device's kernels, or the host, which would wait for a GPU's numbers.
  enum class StepsReader : uint8_t { device, host };
  /// Returns a zero scalar for each parameter, which counts its updates.
  std::vector<at::Tensor> make_steps(StepsReader reader = StepsReader::device) const;
  /// Overwrites `sums` with the sharing rank's, where ranks share them.
  void shared(const at::Tensor& sums) const {
    if (share_sums_) share_sums_(sums);
  }

 private:
  /// Calls `visit` with those parameters of each group that have a gradient.
  template <class Visit>
  void for_each_group(Visit visit);

  std::vector<at::Tensor> parameters_;
  double lr_;
  std::vector<std::vector<size_t>> groups_;
  std::function<void(const at::Tensor&)> share_sums_;
};

/// Bytes of parameters, gradients and state that one fused call takes; a larger parameter is a group of its own.
inline constexpr int64_t kDefaultGroupBytes = 32 << 20;

/// The options of Sgd.
struct SgdOptions {
  double lr = 0.1;
  double momentum = 0.9;  ///< in [0, 1)
  bool nesterov = false;  ///< look ahead along the momentum, which must then be above 0
  double weight_decay = 0;
  int64_t group_bytes = kDefaultGroupBytes;
};

/// Stochastic gradient descent, with momentum if there is any, by `_fused_sgd_`. The momentum starts at zero, so that
/// the first update sets it to the parameter's first gradient.
class Sgd final : public Optimizer {
 public:
  Sgd(const std::vector<at::Tensor>& parameters, SgdOptions options);
  std::vector<OptimizerState> state() const override;

 private:
  void update(const std::vector<size_t>& group) override;
  SgdOptions options_;
  std::vector<at::Tensor> momentum_;  // empty without momentum
};

/// The options of Adam and AdamW.
struct AdamOptions {
  double lr = 5e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t group_bytes = kDefaultGroupBytes;
};

/// Adam (Kingma & Ba 2015, algorithm 1), by `_fused_adam_`. Weight decay is added to the gradient.
class Adam : public Optimizer {
 public:
  Adam(const std::vector<at::Tensor>& parameters, AdamOptions options);
  std::vector<OptimizerState> state() const override;

 private:
  friend class AdamW;
  enum class Decay : uint8_t { of_gradient, of_weight };
  Adam(const std::vector<at::Tensor>& parameters, AdamOptions options, Decay decay);
  void update(const std::vector<size_t>& group) override;
  AdamOptions options_;
  Decay decay_;
  std::vector<at::Tensor> mean_, variance_, steps_;
};

/// Adam whose weight decay shrinks the weights by lr · weight_decay beside the update (Loshchilov & Hutter 2019,
/// algorithm 2), by `_fused_adamw_`.
class AdamW final : public Adam {
 public:
  AdamW(const std::vector<at::Tensor>& parameters, AdamOptions options);
};

/// The options of Lamb.
struct LambOptions {
  double lr = 5e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  int64_t group_bytes = kDefaultGroupBytes;
};

/// LAMB (You et al. 2020, algorithm 2): Adam's direction, with a step as long as the parameter's own norm allows. A
/// layer of the paper is a parameter tensor here, φ is the identity, and the ratio is 1 where a norm is zero. There is
/// no fused kernel: a group needs two temporaries of each parameter's size.
class Lamb final : public Optimizer {
 public:
  Lamb(const std::vector<at::Tensor>& parameters, LambOptions options);
  std::vector<OptimizerState> state() const override;

 private:
  void update(const std::vector<size_t>& group) override;
  /// Returns r + λx of each parameter of the group.
  std::vector<at::Tensor> directions(const std::vector<size_t>& group);
  LambOptions options_;
  std::vector<at::Tensor> mean_, variance_, steps_;
};

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
