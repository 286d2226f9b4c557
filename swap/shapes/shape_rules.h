/// Shapes of the results of operators for which LibTorch's C++ library cannot compute shapes alone.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/util/ArrayRef.h>

#include <vector>

namespace spillway::swap {

/// Returns an operator's results, uninitialized.
using ShapeRule = std::vector<at::Tensor> (*)(c10::ArrayRef<c10::IValue> arguments);

/// Returns the rule of an operator; nullptr when there is none.
ShapeRule shape_rule_of(const c10::FunctionSchema& schema);

/// Allocates the scratch that the operator's kernel holds beside its results.
std::vector<at::Tensor> scratch_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

}  // namespace spillway::swap
