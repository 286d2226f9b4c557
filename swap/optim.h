/// Optimizers whose fused kernels take parameters in groups that fit, never all at once.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace spillway {

/// One step over all parameters, group by group: a group's parameters, gradients and state are resident together, other
/// groups need not be. The update is elementwise, so grouping changes no bit. State is allocated when the optimizer is
/// made, so that the first step needs what every step needs. While the optimizer lives, its parameters are counted as
/// weights, and gradients that backward accumulates into them as gradients.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Parameters without a gradient stay as they are.
  void step();
  /// Frees the gradients.
  void zero_grad();
  double lr() const noexcept { return lr_; }
  void set_lr(double lr) noexcept { lr_ = lr; }
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  /// All state tensors, in a fixed order.
  virtual std::vector<at::Tensor> state() const = 0;

 protected:
  /// `state_per_parameter`: state tensors of a parameter's size that a group needs beside parameter and gradient.
  /// Throws c10::Error for a parameter that is no leaf, or an lr that is not positive.
  Optimizer(std::vector<at::Tensor> parameters, double lr, int64_t group_bytes, int64_t state_per_parameter);
  /// Updates the parameters of these indices; each has a gradient.
  virtual void update(const std::vector<size_t>& group) = 0;
  std::vector<at::Tensor> gather(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& group) const;
  std::vector<at::Tensor> gradients(const std::vector<size_t>& group) const;
  /// Zeros like each parameter, counted as optimizer state.
  std::vector<at::Tensor> make_state() const;

 private:
  std::vector<at::Tensor> parameters_;
  double lr_;
  std::vector<std::vector<size_t>> groups_;
};

/// Bytes of parameters, gradients and state that one fused call takes; a larger parameter is a group of its own.
inline constexpr int64_t kDefaultGroupBytes = 32 << 20;

struct SgdOptions {
  double lr = 0.1;
  double momentum = 0.9;  ///< in [0, 1)
  double weight_decay = 0;
  int64_t group_bytes = kDefaultGroupBytes;
};

/// Stochastic gradient descent with momentum, by `_fused_sgd_`.
class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<at::Tensor> parameters, SgdOptions options);
  std::vector<at::Tensor> state() const override { return momentum_; }

 private:
  void update(const std::vector<size_t>& group) override;
  SgdOptions options_;
  std::vector<at::Tensor> momentum_;
  std::vector<bool> started_;  // by parameter: its momentum holds a gradient
};

struct AdamOptions {
  double lr = 5e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t group_bytes = kDefaultGroupBytes;
};

/// Adam (Kingma & Ba 2015, algorithm 1), by `_fused_adam_`.
class Adam final : public Optimizer {
 public:
  Adam(std::vector<at::Tensor> parameters, AdamOptions options);
  std::vector<at::Tensor> state() const override;

 private:
  void update(const std::vector<size_t>& group) override;
  AdamOptions options_;
  std::vector<at::Tensor> mean_, variance_;
  std::vector<at::Tensor> steps_;  // by parameter: how often it was updated, float32 scalars
};

}  // namespace spillway
