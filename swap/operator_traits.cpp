#include "swap/operator_traits.h"

#include <array>
#include <string_view>

namespace spillway {
namespace {

/// Operators that write arguments which their schemas do not mark. Found by reading kernels and by the checking double.
constexpr std::array<std::string_view, 6> kWritesRunningStatistics{
    "aten::native_batch_norm",       "aten::cudnn_batch_norm",        "aten::miopen_batch_norm",
    "aten::batch_norm_update_stats", "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"};

/// Operators that write other arguments which they do not mark: oneDNN's recurrent backward fills its workspace.
constexpr std::array<std::string_view, 1> kWritesAll{"aten::mkldnn_rnn_layer_backward"};

/// Operators that only look at shapes; none of them aliases in its schema.
constexpr std::array<std::string_view, 17> kShapeOnly{
    "aten::empty",        "aten::empty_like",    "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::zeros_like",   "aten::ones_like",     "aten::full_like",     "aten::rand_like", "aten::randn_like",
    "aten::randint_like", "aten::new_zeros",     "aten::new_ones",      "aten::new_full",  "aten::_unsafe_view",
    "aten::is_same_size", "aten::_reshape_alias"};

bool contains(auto& names, std::string_view name) {
  for (std::string_view n : names)
    if (n == name) return true;
  return false;
}

}  // namespace

OperatorTraits traits_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& base = schema.name();
  OperatorTraits traits{OperatorKind::kernel, base, {}, false};
  if (!schema.overload_name().empty()) traits.name += "." + schema.overload_name();

  const std::string_view space = std::string_view(base).substr(0, base.find(':'));
  const bool of_libtorch = space == "aten" || space == "prims" || space == "prim";
  const bool annotated = of_libtorch || space == "spillway";
  traits.may_wait = !of_libtorch;
  bool writes_any = false, aliases = false;
  for (const c10::Argument& argument : schema.arguments()) {
    bool writes =
        !annotated || contains(kWritesAll, base) || (argument.alias_info() && argument.alias_info()->isWrite());
    if (contains(kWritesRunningStatistics, base)) writes |= argument.name().starts_with("running_");
    traits.writes.push_back(writes);
    writes_any |= writes;
  }
  for (const c10::Argument& result : schema.returns()) aliases |= result.alias_info() != nullptr;

  if (space == "c10d" || space == "_c10d_functional")
    traits.kind = OperatorKind::refused;
  else if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    traits.kind = OperatorKind::composite;
  else if (contains(kShapeOnly, base))
    traits.kind = OperatorKind::shape_only;
  else if (aliases && !writes_any)
    traits.kind = OperatorKind::view;
  return traits;
}

}  // namespace spillway
