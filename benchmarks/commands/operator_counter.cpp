#include "benchmarks/commands/operator_counter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace spillway::tools {

/// A thread whose operators are counted.
struct CountedThread {
  std::map<std::string, int64_t>& by_name;
  int64_t depth = 0;  ///< operators that the thread is in, counted from one that has a kernel of its own
};

namespace {

thread_local CountedThread* counted = nullptr;

/// Returns true for an operator that has no kernel of its own, and only calls others.
bool only_calls(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  const auto found = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  return !found || found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
}

bool computes(const c10::FunctionSchema& schema) {
  constexpr std::array<std::string_view, 4> kAllocations{"aten::empty", "aten::empty_like", "aten::empty_strided",
                                                         "aten::new_empty"};
  return !is_view(schema) && std::ranges::find(kAllocations, schema.name()) == kAllocations.end();
}

// A kernel that calls other operators counts once.
std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  if (!counted) return nullptr;
  if (counted->depth > 0) return ++counted->depth, nullptr;
  if (only_calls(function)) return nullptr;
  counted->depth = 1;
  if (const auto schema = function.operator_schema(); schema && computes(*schema)) ++counted->by_name[schema->name()];
  return nullptr;
}

void leave(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  if (counted && counted->depth > 0) --counted->depth;
}

}  // namespace

OperatorCounter::OperatorCounter() : thread_(new CountedThread{by_name_}) {
  TORCH_CHECK(!counted, "[operator_counter] this thread's operators are counted already");
  counted = thread_.get();
  callback_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&enter, &leave).scopes({at::RecordScope::FUNCTION}));
}

OperatorCounter::~OperatorCounter() {
  at::removeCallback(callback_);
  counted = nullptr;
}

int64_t OperatorCounter::all() const {
  int64_t sum = 0;
  for (const auto& [name, count] : by_name_) sum += count;
  return sum;
}

}  // namespace spillway::tools
