#include "swap/windows/window_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "swap/windows/tensor_layout.h"

namespace spillway::swap {
namespace {

/// Operators that are elementwise though LibTorch does not tag them so.
constexpr std::array<std::string_view, 14> kElementwise{
    "aten::leaky_relu", "aten::leaky_relu_", "aten::leaky_relu_backward",
    "aten::hardtanh",   "aten::hardtanh_",   "aten::hardtanh_backward",
    "aten::elu",        "aten::elu_",        "aten::elu_backward",
    "aten::copy_",      "aten::_to_copy",    "aten::zero_",
    "aten::fill_",      "aten::relu6"};

struct NamedRule {
  std::string_view name;
  WindowRule rule;
};
constexpr std::array<NamedRule, 20> kRules{{{"aten::cat", &split_copies},
                                            {"aten::clone", &split_copies},
                                            {"aten::max_pool2d_with_indices", &split_pooling},
                                            {"aten::max_pool2d_with_indices_backward", &split_pooling},
                                            {"aten::max_pool3d_with_indices", &split_pooling},
                                            {"aten::max_pool3d_with_indices_backward", &split_pooling},
                                            {"aten::avg_pool2d", &split_pooling},
                                            {"aten::avg_pool2d_backward", &split_pooling},
                                            {"aten::avg_pool3d", &split_pooling},
                                            {"aten::avg_pool3d_backward", &split_pooling},
                                            {"aten::upsample_nearest2d", &split_pooling},
                                            {"aten::upsample_nearest2d_backward", &split_pooling},
                                            {"aten::upsample_nearest3d", &split_pooling},
                                            {"aten::upsample_nearest3d_backward", &split_pooling},
                                            {"aten::native_batch_norm", &split_norms},
                                            {"aten::native_batch_norm_backward", &split_norms},
                                            {"aten::native_group_norm", &split_norms},
                                            {"aten::native_group_norm_backward", &split_norms},
                                            {"aten::convolution", &split_convolutions},
                                            {"aten::convolution_backward", &split_convolutions}}};

bool is_out_variant(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (argument.is_out()) return true;
  return false;
}

/// True when the operator takes single tensors, draws no random numbers, and returns tensors alone.
bool is_plain(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  for (const c10::Argument& argument : op.schema().arguments())
    if (argument.type()->kind() == c10::TypeKind::ListType &&
        argument.type()->containedType(0)->isSubtypeOf(*c10::TensorType::get()))
      return false;
  for (const c10::Argument& result : op.schema().returns())
    if (result.type()->kind() != c10::TypeKind::TensorType) return false;
  return !op.schema().returns().empty();
}

}  // namespace

WindowRule window_rule_of(const c10::OperatorHandle& op) {
  const std::string_view name = op.schema().name();
  for (const NamedRule& rule : kRules)
    if (rule.name == name) return is_out_variant(op.schema()) ? nullptr : rule.rule;
  bool elementwise = op.hasTag(at::Tag::pointwise);
  for (std::string_view known : kElementwise) elementwise |= known == name;
  return elementwise && is_plain(op) ? &split_elementwise : nullptr;
}

bool stays_on(c10::Device device, OperatorArguments arguments) {
  auto tensor_stays = [&](const at::Tensor& tensor) {
    return !tensor.defined() || tensor.device() == device || (tensor.is_cpu() && tensor.dim() == 0);
  };
  auto stays = [&](const c10::IValue& value) {
    if (value.isTensor()) return tensor_stays(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (!tensor_stays(tensor)) return false;
    if (!value.isDevice()) return true;
    const c10::Device asked = value.toDevice();
    return asked.type() == device.type() && (!asked.has_index() || asked.index() == device.index() || device.is_cpu());
  };
  return std::all_of(arguments.begin(), arguments.end(), stays);
}

bool is_plain_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda()) &&
         !tensor.is_quantized() && !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg() &&
         tensor.has_storage() && tensor.numel() > 0 &&
         !tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
}

bool is_large_layout(const at::Tensor& tensor) {
  return is_plain_tensor(tensor) && tensor.is_contiguous();
}

}  // namespace spillway::swap
