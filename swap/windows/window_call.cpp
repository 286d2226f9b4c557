#include "swap/windows/window_call.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "swap/windows/tensor_layout.h"

namespace spillway::swap {
namespace {

at::Tensor packed_like(const at::Tensor& part) {
  return at::empty_strided(part.sizes(), packed_strides(part), part.options().requires_grad(false));
}

bool same_window(const at::Tensor& a, const at::Tensor& b) {
  return share_storage(a, b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// Returns the device of the operator's tensors (stays_on).
c10::Device device_of(OperatorArguments arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > 0) return value.toTensor().device();
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.defined()) return tensor.device();
  }
  return c10::Device(c10::kCPU);
}

/// Returns the overload that takes the results after the arguments and has a kernel that fills them there.
std::optional<c10::OperatorHandle> out_variant_of(const c10::OperatorHandle& op, c10::Device device) {
  const c10::DispatchKey key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  for (const std::string& overload : {std::string("out"), schema.overload_name() + "_out", std::string("grad_input")}) {
    auto found = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
    if (!found || !found->hasKernelForDispatchKey(key)) continue;
    const std::vector<c10::Argument>& arguments = found->schema().arguments();
    bool alike = arguments.size() == count + schema.returns().size();
    for (size_t a = 0; alike && a < arguments.size(); ++a)
      alike = a < count ? *arguments[a].type() == *schema.arguments()[a].type() : arguments[a].is_out();
    if (alike) return found;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Range> ranges(int64_t total, int64_t step) {
  std::vector<Range> all;
  for (int64_t begin = 0; begin < total; begin += step) all.push_back({begin, std::min(step, total - begin)});
  return all;
}

WindowCall::WindowCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, OperatorArguments arguments)
    : device_(device_of(arguments)),
      op_(op),
      out_op_(out_variant_of(op, device_)),
      keys_(keys),
      arguments_(arguments) {}

WindowCall::~WindowCall() = default;

void WindowCall::fill(const at::Tensor& destination, const at::Tensor& part) {
  destination.copy_(part);
}

void WindowCall::write(const at::Tensor& part, const at::Tensor& value) {
  part.copy_(value);
}

at::Tensor WindowCall::output(int32_t, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  return at::empty_strided(sizes, strides, at::TensorOptions(type).device(device_));
}

at::Tensor WindowCall::output(int32_t index, at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type) {
  return output(index, sizes, strides_of(sizes, format), type);
}

at::Tensor WindowCall::take(const at::Tensor& part, Access access) {
  for (const Window& window : windows_)
    if (same_window(window.part, part)) return window.tensor;
  Window window{.part = part, .tensor = {}, .access = access};
  if (!part.is_non_overlapping_and_dense() || !view(window)) {
    window.tensor = packed_like(part);
    if (access != Access::replace) fill(window.tensor, part);
  }
  windows_.push_back(std::move(window));
  return windows_.back().tensor;
}

bool WindowCall::view(Window& window) {
  window.tensor = window.part;
  window.is_view = true;
  return true;
}

void WindowCall::call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  op.redispatchBoxed(keys_, &stack);
}

std::vector<at::Tensor> WindowCall::kernel(std::vector<c10::IValue> arguments) {
  torch::jit::Stack stack = std::move(arguments);
  call(op_, stack);
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) results.push_back(std::move(value).toTensor());
  return results;
}

void WindowCall::kernel_into(std::vector<c10::IValue> arguments, const std::vector<at::Tensor>& results) {
  torch::jit::Stack stack = std::move(arguments);
  for (const at::Tensor& result : results) stack.emplace_back(result);
  call(*out_op_, stack);
}

void WindowCall::finish_attempt() {
  for (const Window& window : windows_)
    if (!window.is_view && window.access != Access::read) write(window.part, window.tensor);
  windows_.clear();
}

}  // namespace spillway::swap
