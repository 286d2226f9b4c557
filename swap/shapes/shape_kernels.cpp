#include "swap/shapes/shape_kernels.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "swap/gate/operator_kernels.h"
#include "swap/gate/session_scope.h"
#include "swap/shapes/map_tensors.h"
#include "swap/shapes/shape_rules.h"

namespace spillway::swap {
namespace {

/// The manner in which an operator runs without values.
enum class Manner : uint8_t {
  itself,     ///< its own kernel runs, because it touches no bytes or is made of other operators
  rule,       ///< a rule makes its results
  number,     ///< it reads a number from a tensor
  in_place,   ///< its results are its arguments
  meta,       ///< LibTorch's Meta kernel tells the shapes
  pointwise,  ///< its result has the size to which its arguments are broadcast
  unknown
};

struct Kernel {
  Manner manner = Manner::unknown;
  ShapeRule rule = nullptr;
  bool takes_time = true;
};

/// Operators that make or change a tensor's description, and touch no bytes.
constexpr std::array<std::string_view, 8> kTouchNoBytes{
    "aten::empty",      "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::empty_like", "aten::resize_",       "aten::set_",      "aten::resize_as_"};

bool is_view(const c10::FunctionSchema& schema) {
  bool aliases = false;
  for (const c10::Argument& result : schema.returns()) aliases |= result.alias_info() != nullptr;
  for (const c10::Argument& argument : schema.arguments())
    if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
  return aliases;
}

/// True where the caller passes the results' tensors.
bool has_out(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (argument.is_out()) return true;
  return false;
}

/// True where every result is an argument that the schema's name says is changed in place; its size stays.
bool is_in_place(const c10::FunctionSchema& schema) {
  return !has_out(schema) && schema.name().ends_with('_');
}

Kernel kernel_of(const c10::OperatorHandle& op, bool on_gpu) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  for (std::string_view known : kTouchNoBytes)
    if (name == known) return {Manner::itself};
  if (is_view(schema)) return {Manner::itself};
  if (name == "aten::_local_scalar_dense") return {Manner::number};
  const bool fills_arguments = has_out(schema);
  if (ShapeRule rule = fills_arguments ? nullptr : shape_rule_of(schema, on_gpu)) return {Manner::rule, rule};
  // Kernels for all devices are made of other operators, but for the one that copies bytes.
  if (name == "aten::copy_") return {Manner::in_place};
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return {Manner::itself};
  if (is_in_place(schema)) return {Manner::in_place};
  for (c10::DispatchKey key : {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
                               c10::DispatchKey::CompositeExplicitAutogradNonFunctional})
    if (op.hasKernelForDispatchKey(key)) return {Manner::meta};
  // Operators that tell true from false are not in the type of their arguments.
  const bool is_plain = fills_arguments || !(name.starts_with("aten::is") || name.starts_with("aten::logical"));
  if (op.hasTag(at::Tag::pointwise) && is_plain) return {Manner::pointwise};
  return {fills_arguments ? Manner::in_place : Manner::unknown};
}

at::Tensor to_meta(const at::Tensor& tensor) {
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

c10::IValue to_meta(const c10::IValue& value) {
  if (value.isDevice()) return c10::Device(c10::kMeta);
  if (value.isGenerator()) return {};
  return map_tensors(value, [](const at::Tensor& tensor) { return to_meta(tensor); });
}

c10::IValue from_meta(const c10::IValue& value) {
  return map_tensors(value, [](const at::Tensor& meta) {
    return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(c10::kCPU));
  });
}

/// Gives a result that the caller passed in the size that the kernel found.
void resize_like(const at::Tensor& tensor, const at::Tensor& meta) {
  if (tensor.sizes() == meta.sizes()) return;
  tensor.resize_(meta.sizes());
}

/// The seconds of all operators of a dry run so far.
struct DrySeconds {
  double kernels = 0;
  double gaps = 0;               ///< seconds of the host before operators
  bool is_first_kernel = false;  ///< the next kernel is its operator's first one; others are those of windows
};

/// Times the operators of a dry run by the seconds that their kernels would have taken. The host launches a GPU's
/// operators while earlier ones run, so a GPU waits only for the part of the host's time that these do not take.
class DryClock final : public ComputeClock {
 public:
  DryClock(std::shared_ptr<DrySeconds> sums, bool on_gpu) : sums_(std::move(sums)), on_gpu_(on_gpu) {}
  void begin() override {
    sums_->is_first_kernel = true;
    began_ = *sums_;
  }
  void end() override {
    const double seconds = sums_->kernels - began_.kernels, host = sums_->gaps - began_.gaps;
    const double gap = std::max(0.0, host - ahead_);
    all_.push_back({.seconds = seconds, .gap_seconds = gap});
    if (on_gpu_) ahead_ += gap + seconds - host;
  }
  void pause() override {}
  void resume() override {}
  std::vector<Times> take() override {
    ahead_ = 0;
    return std::exchange(all_, {});
  }
  void forget() override {
    ahead_ = 0;
    all_.clear();
  }
  bool is_free() const override { return true; }

 private:
  const std::shared_ptr<DrySeconds> sums_;
  const bool on_gpu_;
  DrySeconds began_;
  double ahead_ = 0;  // seconds of work that the GPU still has when the host begins with the next operator
  std::vector<Times> all_;
};

class ShapeKernels final : public OperatorKernels {
 public:
  explicit ShapeKernels(std::shared_ptr<KernelTimes> times)
      : times_(std::move(times)), on_gpu_(times_ && times_->on_gpu()) {}

  std::unique_ptr<ComputeClock> make_clock() override {
    return times_ ? std::make_unique<DryClock>(sums_, on_gpu_) : nullptr;
  }
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const Kernel& kernel = find(op);
    if (times_ && std::exchange(sums_->is_first_kernel, false)) sums_->gaps += times_->gap_seconds(op);
    if (times_ && kernel.takes_time)
      sums_->kernels += times_->seconds(op, torch::jit::last(stack, op.schema().arguments().size()));
    switch (kernel.manner) {
      case Manner::itself:
        return op.redispatchBoxed(keys, &stack);
      case Manner::number:
        return push_number(torch::jit::pop(stack).toTensor(), stack);
      case Manner::in_place:
        return run_in_place(op, stack);
      case Manner::rule:
        return run_rule(kernel.rule, op, stack);
      case Manner::meta:
        return run_meta(op, stack);
      case Manner::pointwise:
        return run_pointwise(op, stack);
      case Manner::unknown:
        throw BadRequest(
            str("[dry run] ", op.schema().name(), op.schema().overload_name().empty() ? "" : ".",
                op.schema().overload_name(),
                " has no rule for its results' sizes, so a model with it cannot be planned unless it runs"));
    }
  }

 private:
  const Kernel& find(const c10::OperatorHandle& op) {
    const auto known = kernels_.find(&op.schema());
    if (known != kernels_.end()) return known->second;
    Kernel kernel = kernel_of(op, on_gpu_);
    // Collectives alone do work of their own among the kernels that run themselves.
    kernel.takes_time = kernel.manner != Manner::number &&
                        (kernel.manner != Manner::itself || op.schema().name().starts_with("spillway::"));
    return kernels_.emplace(&op.schema(), kernel).first->second;
  }

  /// Pushes what a dry run reads from a tensor: true, so that checks pass, or 0.
  static void push_number(const at::Tensor& tensor, torch::jit::Stack& stack) {
    if (tensor.scalar_type() == at::kBool)
      stack.emplace_back(at::Scalar(true));
    else
      stack.emplace_back(at::Scalar(0.0));
  }

  /// Allocates the scratch that the operator's kernel holds beside its results.
  std::vector<at::Tensor> allocate_scratch(const c10::OperatorHandle& op,
                                           const std::vector<c10::IValue>& arguments) const {
    std::vector<at::Tensor> scratch = scratch_of(op.schema(), arguments, on_gpu_);
    // A GPU's kernels convert what they read.
    if (on_gpu_ || !op.hasTag(at::Tag::pointwise)) return scratch;
    for (at::Tensor& copy : converted(op, arguments)) scratch.push_back(std::move(copy));
    // A number in place of the second tensor is first made a tensor, and then converted. (lerp's is its third
    // argument.)
    if (op.schema().overload_name() != "Scalar" || !arguments[1].isScalar()) return scratch;
    const at::ScalarType type = arguments[1].toScalar().type();
    scratch.push_back(at::empty({}, at::TensorOptions(type)));
    if (arguments[0].toTensor().scalar_type() != type) scratch.push_back(at::empty({}, at::TensorOptions(type)));
    return scratch;
  }

  void run_rule(ShapeRule rule, const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    const size_t count = op.schema().arguments().size();
    const std::vector<c10::IValue> arguments = torch::jit::last(stack, count).vec();
    torch::jit::drop(stack, count);
    for (at::Tensor& result : rule(arguments)) stack.emplace_back(std::move(result));
    const auto scratch = allocate_scratch(op, arguments);
  }

  void run_in_place(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    const size_t count = op.schema().arguments().size();
    const std::vector<c10::IValue> arguments = torch::jit::last(stack, count).vec();
    const auto scratch = allocate_scratch(op, arguments);
    torch::jit::drop(stack, count);
    for (const c10::Argument& result : op.schema().returns()) push_alias(op, result, arguments, stack);
  }

  /// Pushes the argument that a result is.
  static void push_alias(const c10::OperatorHandle& op, const c10::Argument& result,
                         const std::vector<c10::IValue>& arguments, torch::jit::Stack& stack) {
    for (size_t a = 0; a < arguments.size(); ++a) {
      const c10::AliasInfo* alias = op.schema().arguments()[a].alias_info();
      if (alias && result.alias_info() && *alias == *result.alias_info()) return stack.push_back(arguments[a]);
    }
    TORCH_CHECK(false, "[dry run] ", op.schema().name(), " does not say which argument its result is");
  }

  void run_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size();
    const std::vector<c10::IValue> arguments = torch::jit::last(stack, count).vec();
    torch::jit::Stack meta;
    for (const c10::IValue& argument : arguments) meta.push_back(to_meta(argument));
    const torch::jit::Stack given = meta;
    {
      const c10::impl::ExcludeDispatchKeyGuard closed(kGateKey);
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
    }
    for (size_t a = 0; a < count; ++a)
      if (schema.arguments()[a].is_out() && arguments[a].isTensor())
        resize_like(arguments[a].toTensor(), given[a].toTensor());
    torch::jit::drop(stack, count);
    const auto scratch = allocate_scratch(op, arguments);
    for (size_t r = 0; r < schema.returns().size(); ++r) {
      if (schema.returns()[r].alias_info())
        push_alias(op, schema.returns()[r], arguments, stack);
      else
        stack.push_back(from_meta(meta[r]));
    }
  }

  /// Returns the copies that LibTorch makes of a pointwise operator's arguments whose type is not the one that it
  /// computes in.
  static std::vector<at::Tensor> converted(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
    std::vector<at::Tensor> inputs, copies;
    for (size_t a = op.schema().name() == "aten::where" ? 1 : 0; a < arguments.size(); ++a)
      if (arguments[a].isTensor() && arguments[a].toTensor().defined() && !op.schema().arguments()[a].is_out())
        inputs.push_back(arguments[a].toTensor());
    at::native::ResultTypeState state{};
    for (const at::Tensor& input : inputs) state = at::native::update_result_type_state(input, state);
    const at::ScalarType type = at::native::result_type(state);
    for (const at::Tensor& input : inputs)
      if (input.scalar_type() != type) copies.push_back(at::empty(input.sizes(), at::TensorOptions(type)));
    return copies;
  }

  /// Runs a pointwise operator: its result has the size to which its arguments are broadcast, and the layout and type
  /// of the first that has this size.
  void run_pointwise(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    const auto& schema = op.schema();
    const std::vector<c10::IValue> arguments = torch::jit::last(stack, schema.arguments().size()).vec();
    torch::jit::drop(stack, arguments.size());
    std::vector<at::Tensor> inputs;
    at::Tensor result;
    for (size_t a = 0; a < arguments.size(); ++a)
      if (arguments[a].isTensor() && arguments[a].toTensor().defined())
        (schema.arguments()[a].is_out() ? result : inputs.emplace_back()) = arguments[a].toTensor();
    std::vector<int64_t> sizes;
    for (const at::Tensor& input : inputs) sizes = at::infer_size(sizes, input.sizes());
    if (!result.defined()) {
      const auto whole = std::find_if(inputs.begin(), inputs.end(), [&](const auto& t) { return t.sizes() == sizes; });
      result = whole == inputs.end() ? at::empty(sizes, inputs.at(0).options()) : at::empty_like(*whole);
    } else if (result.sizes() != at::IntArrayRef(sizes)) {
      result.resize_(sizes);
    }
    const auto scratch = allocate_scratch(op, arguments);
    stack.emplace_back(result);
  }

  const std::shared_ptr<KernelTimes> times_;
  const bool on_gpu_;
  const std::shared_ptr<DrySeconds> sums_ = std::make_shared<DrySeconds>();
  std::unordered_map<const c10::FunctionSchema*, Kernel> kernels_;
};

}  // namespace

std::shared_ptr<OperatorKernels> make_shape_kernels(std::shared_ptr<KernelTimes> times) {
  return std::make_shared<ShapeKernels>(std::move(times));
}

}  // namespace spillway::swap
