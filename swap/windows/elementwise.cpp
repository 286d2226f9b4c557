// Elementwise operators: flat ranges of tensors of one shape and layout.
#include <ATen/ATen.h>

#include <optional>

#include "swap/windows/tensor_layout.h"
#include "swap/windows/window_call.h"

namespace spillway::swap {
namespace {

/// The multiple at which ranges begin, so that vector kernels meet ragged ends where the whole operator would.
constexpr int64_t kElementMultiple = 1024;

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

bool is_one_element_everywhere(const at::Tensor& tensor) {
  return std::all_of(tensor.strides().begin(), tensor.strides().end(), [](int64_t stride) { return stride == 0; });
}

/// Returns all elements of a dense tensor, in the order in which they lie.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

/// True when results have the strides of the arguments under this argument. A flat range then has no use for it.
bool keeps_layout(const c10::Argument& argument, const c10::IValue& value, const at::Tensor& model) {
  if (argument.name() != "memory_format" || value.isNone()) return true;
  const at::MemoryFormat format = value.toMemoryFormat();
  return format == at::MemoryFormat::Preserve || model.is_contiguous(format);
}

class ElementwisePlan final : public WindowPlan {
 public:
  struct Argument {
    bool large = false, write = false, read = true;
    bool spread = false;  ///< one element, expanded to the shape of the others
  };
  ElementwisePlan(const c10::FunctionSchema& schema, at::Tensor model, std::vector<Argument> kinds, int64_t step)
      : schema_(schema), model_(std::move(model)), kinds_(std::move(kinds)), step_(step) {
    for (const Argument& kind : kinds_) argument_uses.push_back(kind.large ? ArgumentUse::windows : ArgumentUse::whole);
  }

  std::vector<at::Tensor> run(WindowCall& call) override {
    std::vector<at::Tensor> results(schema_.returns().size());
    for (size_t r = 0; r < results.size(); ++r)
      if (schema_.returns()[r].alias_info()) results[r] = aliased(call.arguments(), r);
    for (const Range& range : ranges(model_.numel(), step_)) {
      if (results.size() == 1 && results[0].defined() && !schema_.returns()[0].alias_info() &&
          call.can_write_results()) {
        call.attempt([&] {
          call.kernel_into(arguments(call, range), {call.replace(flat(results[0]).narrow(0, range.begin, range.size))});
          return 0;
        });
        continue;
      }
      const std::vector<at::Tensor> windows = call.attempt([&] { return call.kernel(arguments(call, range)); });
      for (size_t r = 0; r < results.size(); ++r) {
        if (schema_.returns()[r].alias_info()) continue;
        if (!results[r].defined()) results[r] = call.output(r, model_.sizes(), strides(), windows[r].scalar_type());
        call.write(flat(results[r]).narrow(0, range.begin, range.size), windows[r]);
      }
    }
    return results;
  }

 private:
  std::vector<c10::IValue> arguments(WindowCall& call, const Range& range) {
    std::vector<c10::IValue> window = call.arguments().vec();
    auto part = [&](size_t a) { return flat(window[a].toTensor()).narrow(0, range.begin, range.size); };
    // Written arguments come first, because an argument that is given twice is one window.
    for (bool write : {true, false})
      for (size_t a = 0; a < kinds_.size(); ++a) {
        const Argument& kind = kinds_[a];
        if (!kind.large || kind.write != write) continue;
        window[a] = !kind.write ? call.read(part(a)) : kind.read ? call.update(part(a)) : call.replace(part(a));
      }
    for (size_t a = 0; a < kinds_.size(); ++a) {
      if (kinds_[a].large || !window[a].isTensor() || !window[a].toTensor().defined()) continue;
      const at::Tensor whole = window[a].toTensor();
      // Its dimensions must not outnumber the single dimension of the range.
      if (whole.dim() > 0)
        window[a] = whole.as_strided({kinds_[a].spread ? range.size : 1}, {0}, whole.storage_offset());
    }
    for (size_t a = 0; a < kinds_.size(); ++a)
      if (schema_.arguments()[a].name() == "memory_format") window[a] = c10::IValue();
    return window;
  }

  at::Tensor aliased(OperatorArguments arguments, size_t result) const {
    const auto& sets = schema_.returns()[result].alias_info()->beforeSets();
    for (size_t a = 0; a < arguments.size(); ++a)
      if (const c10::AliasInfo* alias = schema_.arguments()[a].alias_info(); alias && alias->beforeSets() == sets)
        return arguments[a].toTensor();
    return {};
  }

  c10::DimVector strides() const {
    return model_.is_contiguous() ? c10::contiguous_strides(model_.sizes()) : c10::DimVector(model_.strides());
  }

  const c10::FunctionSchema& schema_;
  const at::Tensor model_;
  const std::vector<Argument> kinds_;
  const int64_t step_;
};

/// True when a written tensor shares its storage with another argument that is not the same elements.
bool overlaps_differently(OperatorArguments arguments, const std::vector<ElementwisePlan::Argument>& kinds) {
  for (size_t a = 0; a < kinds.size(); ++a) {
    if (!kinds[a].write) continue;
    const at::Tensor& written = arguments[a].toTensor();
    for (size_t b = 0; b < kinds.size(); ++b) {
      if (a == b || !arguments[b].isTensor() || !arguments[b].toTensor().defined()) continue;
      const at::Tensor& other = arguments[b].toTensor();
      if (!share_storage(other, written)) continue;
      if (!kinds[b].large || other.storage_offset() != written.storage_offset() ||
          other.scalar_type() != written.scalar_type())
        return true;
    }
  }
  return false;
}

/// Returns the largest tensor; nullptr when there is none, or one of the tensors is not plain.
const at::Tensor* largest(OperatorArguments arguments) {
  const at::Tensor* model = nullptr;
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (!is_plain_tensor(tensor)) return nullptr;
    if (!model || tensor.numel() > model->numel()) model = &tensor;
  }
  return model;
}

/// Returns the role of each argument; nothing when one of them does not go along with `model`'s flat ranges.
std::optional<std::vector<ElementwisePlan::Argument>> classify(const c10::FunctionSchema& schema,
                                                               OperatorArguments arguments, const at::Tensor& model) {
  std::vector<ElementwisePlan::Argument> kinds(arguments.size());
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (!keeps_layout(schema.arguments()[a], arguments[a], model)) return std::nullopt;
    if (!arguments[a].isTensor() || !arguments[a].toTensor().defined()) continue;
    const at::Tensor& tensor = arguments[a].toTensor();
    const c10::AliasInfo* alias = schema.arguments()[a].alias_info();
    kinds[a].write = alias && alias->isWrite();
    kinds[a].large = same_layout(tensor, model);
    kinds[a].spread = !kinds[a].large && tensor.sizes() == model.sizes() && is_one_element_everywhere(tensor);
    if (!kinds[a].large && (kinds[a].write || (!kinds[a].spread && tensor.numel() != 1))) return std::nullopt;
  }
  if (overlaps_differently(arguments, kinds)) return std::nullopt;
  return kinds;
}

/// True when a written argument must be read. It need not be when the operator only overwrites it, unless it is given
/// as another argument too.
bool must_read(const c10::FunctionSchema& schema, OperatorArguments arguments, size_t written) {
  const std::string_view name = schema.name();
  const bool overwrites = name == "aten::copy_" || name == "aten::zero_" || name == "aten::fill_";
  if (!overwrites && !schema.arguments()[written].is_out()) return true;
  for (size_t b = 0; b < arguments.size(); ++b)
    if (b != written && arguments[b].isTensor() && arguments[b].toTensor().defined() &&
        share_storage(arguments[b].toTensor(), arguments[written].toTensor()))
      return true;
  return false;
}

}  // namespace

std::unique_ptr<WindowPlan> split_elementwise(const c10::OperatorHandle& op, OperatorArguments arguments,
                                              const WindowSizes& sizes) {
  const at::Tensor* model = largest(arguments);
  const int64_t count = arguments.size() + 1;
  // A cheap test refuses nearly every call: it is small even if all tensors were as large as the largest.
  if (!model || model->numel() * 16 * count <= sizes.split_bytes) return nullptr;
  if (model->dim() == 0 || !model->is_non_overlapping_and_dense()) return nullptr;
  const c10::FunctionSchema& schema = op.schema();
  auto kinds = classify(schema, arguments, *model);
  if (!kinds) return nullptr;
  int64_t element_bytes = 0;
  for (size_t a = 0; a < kinds->size(); ++a) {
    if ((*kinds)[a].large) element_bytes += arguments[a].toTensor().element_size();
    if ((*kinds)[a].write) (*kinds)[a].read = must_read(schema, arguments, a);
  }
  for (const c10::Argument& result : schema.returns())
    if (!result.alias_info()) element_bytes += model->element_size();
  if (element_bytes * model->numel() <= sizes.split_bytes) return nullptr;
  const int64_t step = units_per_window(sizes.window_bytes(), element_bytes * kElementMultiple) * kElementMultiple;
  return std::make_unique<ElementwisePlan>(schema, *model, std::move(*kinds), step);
}

}  // namespace spillway::swap
