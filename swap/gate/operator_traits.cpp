#include "swap/gate/operator_traits.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace spillway::swap {
namespace {

/// Operators that write arguments that their schemas do not mark. They were found by reading kernels and by the test
/// double that checks writes.
constexpr std::array<std::string_view, 6> kWritesRunningStatistics{
    "aten::native_batch_norm",       "aten::cudnn_batch_norm",        "aten::miopen_batch_norm",
    "aten::batch_norm_update_stats", "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"};

/// Operators that write other arguments that their schemas do not mark. oneDNN's recurrent backward fills its
/// workspace. cuDNN's recurrent backward fills its reserve, and its forward draws from the dropout state.
constexpr std::array<std::string_view, 3> kWritesAll{"aten::mkldnn_rnn_layer_backward", "aten::_cudnn_rnn",
                                                     "aten::_cudnn_rnn_backward"};

/// Operators that make memory and write nothing.
constexpr std::array<std::string_view, 5> kMemory{"aten::empty", "aten::empty_like", "aten::empty_strided",
                                                  "aten::new_empty", "aten::new_empty_strided"};

/// Operators that only look at shapes; none of them aliases in its schema.
constexpr std::array<std::string_view, 12> kShapeOnly{
    "aten::zeros_like", "aten::ones_like",    "aten::full_like",    "aten::rand_like",
    "aten::randn_like", "aten::randint_like", "aten::new_zeros",    "aten::new_ones",
    "aten::new_full",   "aten::_unsafe_view", "aten::is_same_size", "aten::_reshape_alias"};

/// Producers that are cheap to run again although they are not pointwise: each costs no more than a pass over its
/// bytes.
constexpr std::array<std::string_view, 24> kCheap{"aten::native_batch_norm",
                                                  "aten::native_layer_norm",
                                                  "aten::native_group_norm",
                                                  "aten::cat",
                                                  "aten::stack",
                                                  "aten::clone",
                                                  "aten::_to_copy",
                                                  "aten::copy_",
                                                  "aten::fill_",
                                                  "aten::zero_",
                                                  "aten::repeat",
                                                  "aten::empty",
                                                  "aten::empty_like",
                                                  "aten::zeros_like",
                                                  "aten::constant_pad_nd",
                                                  "aten::upsample_nearest1d",
                                                  "aten::upsample_nearest2d",
                                                  "aten::upsample_nearest3d",
                                                  "aten::upsample_bilinear2d",
                                                  "aten::upsample_trilinear3d",
                                                  "aten::avg_pool2d",
                                                  "aten::avg_pool3d",
                                                  "aten::_softmax",
                                                  "aten::_log_softmax"};

bool contains(auto& names, std::string_view name) {
  for (std::string_view n : names)
    if (n == name) return true;
  return false;
}

/// True for a `_foreach_` operator that loops over its lists. Such operators have no kernel for the CPU but a loop that
/// calls an operator per tensor, so the list need not be resident together. Operators that are given their scalars as a
/// tensor are excluded, because they read it through a pointer.
bool loops_over_lists(const c10::OperatorHandle& op) {
  if (!op.schema().name().starts_with("aten::_foreach_")) return false;
  for (const c10::Argument& argument : op.schema().arguments())
    if (argument.type()->kind() == c10::TypeKind::TensorType) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

/// The namespace of torch.distributed's collectives that return their results, as DTensor calls them. Their schemas
/// mark what they write. Its operators that name no group wait for a collective's result, or wrap it, and return that
/// tensor itself.
constexpr std::string_view kFunctionalCollectives = "_c10d_functional";

bool names_a_group(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const auto& argument) { return argument.name() == "group_name"; });
}

/// Returns the reason why an operator cannot run inside a Session; empty when it can.
std::string refusal_of(std::string_view space, bool is_collective) {
  if (is_collective)
    return "is asynchronous and does not say what it writes, so it cannot run inside a Session; use "
           "torch.distributed's backend 'spillway', spillway's collectives (ddl/torch/comm.h), or call it while no "
           "Session is open";
  if (space == "inductor")
    return "belongs to code of torch.compile, whose kernels Spillway cannot see, so it cannot run inside a Session; "
           "run the model eagerly there";
  return "";
}

/// Returns the kind of an operator that is not refused. `is_view`: its results alias arguments, and it writes nothing.
OperatorKind kind_of(std::string_view name, bool is_view) {
  if (contains(kMemory, name)) return OperatorKind::memory;
  if (contains(kShapeOnly, name)) return OperatorKind::shape_only;
  return is_view ? OperatorKind::view : OperatorKind::kernel;
}

/// True for the arguments of torch.distributed's operators that are written. Their schemas do not mark them, but their
/// names are a convention: those that are only read are `input_tensors`, `input_tensor` and the tensors of `send`.
bool is_written_by_collective(std::string_view operation, std::string_view argument) {
  return operation != "c10d::send" && !argument.starts_with("input");
}

/// Returns `aten::add.Tensor`, as a text that lives as long as the process, because traces outlive their Sessions.
std::string_view permanent_name(const c10::FunctionSchema& schema) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>;
  const std::string& overload = schema.overload_name();
  const std::lock_guard lock(mutex);
  return *names.insert(overload.empty() ? schema.name() : schema.name() + "." + overload).first;
}

}  // namespace

OperatorTraits traits_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& base = schema.name();
  OperatorTraits traits{
      .kind = OperatorKind::kernel, .name = permanent_name(schema), .writes = {}, .windows = window_rule_of(op)};

  const std::string_view space = std::string_view(base).substr(0, base.find(':'));
  const bool of_libtorch = space == "aten" || space == "prims" || space == "prim";
  const bool is_functional = space == kFunctionalCollectives;
  const bool annotated = of_libtorch || space == "spillway" || is_functional;
  traits.may_wait = !of_libtorch;
  traits.shares_memory = base == "aten::_lazy_clone";
  traits.keeps_gradients = base == "aten::detach" || base == "aten::copy_" || base == "aten::zero_" ||
                           (base == "aten::mul" && schema.overload_name() == "out");
  traits.is_collective = space == "c10d" || (is_functional && names_a_group(schema));
  bool writes_any = false, aliases = false;
  for (const c10::Argument& argument : schema.arguments()) {
    bool writes =
        !annotated || contains(kWritesAll, base) || (argument.alias_info() && argument.alias_info()->isWrite());
    if (space == "c10d") writes = is_written_by_collective(base, argument.name());
    if (contains(kWritesRunningStatistics, base)) writes |= argument.name().starts_with("running_");
    traits.writes.push_back(writes);
    writes_any |= writes;
  }
  for (const c10::Argument& result : schema.returns()) {
    aliases |= result.alias_info() != nullptr;
    // A collective that may run has ended when it returns, so the object that it returns holds no memory.
    traits.keeps_arguments |= !traits.is_collective && result.type()->kind() == c10::TypeKind::ClassType;
  }

  traits.refusal = refusal_of(space, traits.is_collective);
  const bool is_view = is_functional ? !traits.is_collective : aliases && !writes_any;
  traits.kind = traits.refusal.empty() ? kind_of(base, is_view) : OperatorKind::refused;
  traits.composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || loops_over_lists(op);
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  traits.replayable = of_libtorch && !random && (op.hasTag(at::Tag::pointwise) || contains(kCheap, base)) &&
                      traits.kind != OperatorKind::view && traits.kind != OperatorKind::refused;
  return traits;
}

bool is_replayable(const OperatorTraits& traits, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!traits.replayable) return false;
  if (!contains(kWritesRunningStatistics, op.schema().name())) return true;
  const auto& arguments = op.schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    const c10::IValue& value = torch::jit::peek(stack, a, arguments.size());
    if (arguments[a].name() == "running_mean" && value.isTensor() && value.toTensor().defined()) return false;
  }
  return true;
}

bool runs_as_parts(const OperatorTraits& traits, const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  if (!traits.composite) return false;
  return !op.hasKernelForDispatchKey(keys.remove(c10::DispatchKey::BackendSelect).highestPriorityTypeId());
}

}  // namespace spillway::swap
