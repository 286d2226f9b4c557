/// Shapes of the results of operators for which LibTorch's C++ library cannot compute shapes alone.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/util/ArrayRef.h>

#include <vector>

namespace spillway::swap {

/// Returns an operator's results, or its scratch, uninitialized.
using ShapeRule = std::vector<at::Tensor> (*)(c10::ArrayRef<c10::IValue> arguments);

/// Returns the rule of an operator; nullptr when there is none. With `on_gpu` a convolution allocates its results
/// alone. What cuDNN takes beside them depends on the kernel that it finds, and is not known here.
ShapeRule shape_rule_of(const c10::FunctionSchema& schema, bool on_gpu = false);

/// Allocates the scratch that the operator's kernel holds beside its results: that of LibTorch's kernels for the CPU.
/// A GPU's kernels have none, but for decompositions.
std::vector<at::Tensor> scratch_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                                   bool on_gpu = false);

/// Returns an uninitialized vector of `size` in the type in which norms keep their statistics of `input`.
at::Tensor statistics(const at::Tensor& input, at::IntArrayRef size);

}  // namespace spillway::swap
