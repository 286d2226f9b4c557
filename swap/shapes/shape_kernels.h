/// Kernels that compute no values: a Session that has them runs a step dry.
#pragma once
#include <memory>

namespace spillway::swap {

class KernelTimes;
class OperatorKernels;

/// Makes kernels, for Sessions on the CPU, whose results have their sizes, strides and charged bytes, and whose values
/// are undefined. Nothing reads or writes a tensor's bytes, so even a model that fits no memory of this machine runs,
/// in milliseconds. The trace of a step has the operators, storages and bytes of a real one. Scratch inside kernels
/// follows rules (swap/shapes/shape_rules.h). A number that an operator reads from a tensor is 0, or true. Shapes are
/// LibTorch's own: those of its Meta kernels. An operator without one, and without a rule, throws BadRequest naming it.
/// With `times`, the trace has the times that these tell, and the scratch of their device; else the times are those of
/// the dry run.
std::shared_ptr<OperatorKernels> make_shape_kernels(std::shared_ptr<KernelTimes> times = nullptr);

}  // namespace spillway::swap
