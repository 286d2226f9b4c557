/// The weight that an operator of autograd's graph was given, and in which form.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace at {
class Tensor;
}
namespace torch::autograd {
struct Edge;
struct Node;
}  // namespace torch::autograd
namespace c10 {
struct TensorImpl;
}

namespace spillway::kfac {

/// A parameter as an operator was given it: through casts, and through views that it is followed behind.
struct WeightUse {
  const c10::TensorImpl* weight = nullptr;  ///< null where the operand is no parameter
  std::vector<int64_t> weight_sizes = {};
  std::vector<int64_t> sizes = {};  ///< sizes of the operand
  /// By dimension of the weight: the operand's dimension that it is. Without a value where it has size 1.
  std::vector<std::optional<int64_t>> places = {};
  bool is_known = false;  ///< false: views have divided or merged dimensions of the weight

  /// True where the operand is [..., in, out] for a weight [out, in] (and kernel sizes of 1).
  bool is_transposed_matrix() const;
  /// True where the operand has the weight's dimensions in their order, and further ones of size 1 behind them.
  bool is_in_order() const;

 private:
  bool has_matrix_at(int64_t rows, int64_t columns) const;
};

/// True for a function that may stand between an operator and its weight.
bool passes_a_weight_on(std::string_view node);

/// Returns the weight behind at most 16 of such functions. Reads the graph alone, and unpacks nothing.
WeightUse weight_behind(const torch::autograd::Edge& edge);

/// Returns the sizes of what a function of the graph has put out.
std::vector<int64_t> output_sizes(const torch::autograd::Edge& edge);

}  // namespace spillway::kfac
