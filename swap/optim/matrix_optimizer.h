/// Optimizers that take a weight as a matrix: a step depends on its rows and columns, not on each number alone.
#pragma once
#include "swap/optim/optimizer.h"

namespace spillway {

/// The common part of Muon and Soap. A parameter [out, …] of two or more dimensions is a matrix [out, rest].
/// Parameters of fewer dimensions belong to an AdamW beside it, and by custom so do embeddings and the output layer;
/// CombinedOptimizer steps both as one.
class MatrixOptimizer : public Optimizer {
 protected:
  /// Throws c10::Error for a parameter of fewer than two dimensions. The rest is Optimizer's.
  MatrixOptimizer(const std::vector<at::Tensor>& parameters, double lr, double weight_decay, int64_t group_bytes,
                  int64_t tensors_per_parameter);
  /// Updates the state of a matrix, and returns the direction [out, rest] that is subtracted lr times, or an undefined
  /// tensor where the parameter stays as it is. `gradient` is [out, rest].
  virtual at::Tensor direction(size_t i, const at::Tensor& gradient) = 0;
  /// Returns a tensor of a parameter's shape as a matrix.
  static at::Tensor as_matrix(const at::Tensor& tensor) { return tensor.reshape({tensor.size(0), -1}); }

 private:
  void update(const std::vector<size_t>& group) final;
  double weight_decay_;
};

/// The options of Muon.
struct MuonOptions {
  double lr = 5e-4;
  double momentum = 0.95;      ///< in [0, 1)
  bool nesterov = true;        ///< look ahead along the momentum
  int64_t iterations = 5;      ///< iterations of Newton–Schulz, ≥ 1
  double weight_decay = 0.01;  ///< shrinks the weights by lr · weight_decay
  int64_t group_bytes = kDefaultGroupBytes;
};

/// Muon (Jordan et al. 2024): a matrix steps along its momentum, whose singular values are all brought near 1. Its
/// direction is 0.2·√max(out, rest) times that, so that its root mean square is about AdamW's, and AdamW's lr and
/// weight decay serve both (Liu et al. 2025, arXiv 2502.16982, equation 4). State: one tensor of a matrix's size. Cost
/// of a matrix whose shorter side is m and longer side n: iterations·(4·m²·n + 2·m³) flops, and a workspace of three
/// matrices.
class Muon final : public MatrixOptimizer {
 public:
  /// Throws c10::Error for a momentum or a number of iterations out of range.
  Muon(const std::vector<at::Tensor>& parameters, MuonOptions options);
  std::vector<OptimizerState> state() const override;

 private:
  at::Tensor direction(size_t i, const at::Tensor& gradient) override;
  MuonOptions options_;
  std::vector<at::Tensor> mean_;
};

/// The options of Soap.
struct SoapOptions {
  double lr = 3e-3;
  double beta1 = 0.95;
  double beta2 = 0.95;
  double factor_decay = 0.95;  ///< the share of a running factor that stays at each step, in [0, 1)
  double eps = 1e-8;
  int64_t interval = 10;       ///< steps between updates of the eigenvectors, ≥ 1
  int64_t max_side = 2048;     ///< longer sides have no factor, and are not rotated; ≥ 1
  double weight_decay = 0.01;  ///< shrinks the weights by lr · weight_decay
  int64_t group_bytes = kDefaultGroupBytes;
};

/// SOAP (Vyas et al. 2025, arXiv 2409.11321, algorithms 3 and 4): Adam in the eigenbasis of Shampoo's factors E[GGᵀ]
/// and E[GᵀG]. A matrix's first gradient gives its eigenvectors, and leaves the matrix as it is. Later, each `interval`
/// steps, an iteration of the power method and a QR decomposition follow the factors.
/// State: two tensors of a matrix's size, and two of each side squared. Cost of a matrix [m, n]: 8·m·n·(m + n) flops
/// a step, and every `interval` steps about 8·(m³ + n³) flops.
class Soap final : public MatrixOptimizer {
 public:
  /// Throws c10::Error for a factor_decay, an interval or a max_side out of range.
  Soap(const std::vector<at::Tensor>& parameters, SoapOptions options);
  std::vector<OptimizerState> state() const override;

 private:
  /// The running averages of one side's outer products, and their eigenvectors in the order of falling eigenvalues,
  /// [side, side]; undefined where there is none.
  struct Side {
    std::vector<at::Tensor> factors, vectors;
  };
  Side make_side(int64_t dimension) const;
  at::Tensor direction(size_t i, const at::Tensor& gradient) override;
  void average(size_t i, const at::Tensor& gradient);
  void decompose(size_t i);
  void follow(size_t i);
  at::Tensor to_basis(size_t i, const at::Tensor& matrix) const;
  at::Tensor from_basis(size_t i, const at::Tensor& matrix) const;
  SoapOptions options_;
  std::vector<at::Tensor> mean_, variance_, steps_;  // the variance is [out, rest], in the eigenbasis
  Side rows_, columns_;
};

}  // namespace spillway
