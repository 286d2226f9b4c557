// The gate: one boxed fallback that sees every operator of a Session.
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "core/clock.h"
#include "swap/gate/autograd_purposes.h"
#include "swap/gate/blocking_operators.h"
#include "swap/gate/operator_kernels.h"
#include "swap/gate/operator_lease.h"
#include "swap/gate/operator_observer.h"
#include "swap/gate/session_state.h"
#include "swap/gate/session_window_call.h"
#include "swap/gate/storage_page.h"

namespace spillway::swap {
namespace {

/// Makes new storages among the results pages, counted in the category that the surrounding scope says.
void register_outputs(SessionState& session, const OperatorTraits& traits, const torch::jit::Stack& stack,
                      size_t results, c10::SmallVector<Birth, 8>& births) {
  const Category category = CategoryScope::current(Category::activations);
  Device& device = session.share->device;
  StoragesOfCall storages(session, stack, results, session.options.min_page_bytes);
  session.pager.table().locked([&] {  // the storages may be pages, and leaving
    for (const StoragesOfCall::Entry& entry : storages) {
      Block* block = device.find_block(entry.storage->_mutable_data_ptr_no_checks());
      if (block && block->category == Category::workspace) device.memory().recategorize(block, category);
    }
    storages.find_pages();
  });
  const bool are_buckets = traits.kind == OperatorKind::memory && BucketScope::is_open();
  if (traits.kind == OperatorKind::memory && !are_buckets) return;
  int32_t position = kOutputPosition;
  for (const StoragesOfCall::Entry& entry : storages) {
    bool is_new = false;
    Page* page = storages.page_or_register(entry, is_new);
    if (is_new) births.push_back({page, position});
    if (are_buckets)
      session.pager.table().locked([&] {
        give_purpose(*entry.storage, session.pager.table(), Category::gradients);
        let_compare(*entry.storage, true);
      });
    ++position;
  }
}

/// True when the operator reads its arguments. Operators that only make tensors look at shapes alone, unless an
/// argument holds tensors inside that must be read for them.
bool reads_arguments(const OperatorTraits& traits, const torch::jit::Stack& stack) {
  if (traits.kind != OperatorKind::shape_only && traits.kind != OperatorKind::memory) return true;
  const auto arguments = torch::jit::last(stack, traits.writes.size());
  return std::any_of(arguments.begin(), arguments.end(), holds_tensors_inside);
}

struct Measured {
  double seconds = 0;     ///< without waits for copies and without replays; 0 outside steps
  int64_t own_bytes = 0;  ///< maximum of outputs and scratch
};

/// Returns the plan by which this call runs in windows; nullptr: it runs whole.
std::unique_ptr<WindowPlan> plan_windows(SessionState& session, const OperatorTraits& traits,
                                         const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!traits.windows || session.options.split_bytes == kUnlimitedBytes) return nullptr;
  if (session.options.engine == Engine::unified) return nullptr;  // the driver's page faults run it at any size
  const auto arguments = torch::jit::last(stack, traits.writes.size());
  auto plan = traits.windows(op, arguments, {session.options.split_bytes});
  return plan && stays_on(session.share->device.torch_device(), arguments) ? std::move(plan) : nullptr;
}

/// Runs the kernel. An operator that may wait for other threads gives up its turn meanwhile, so that those threads can
/// run their operators.
int64_t call_kernel(SessionState& session, const OperatorTraits& traits, const c10::OperatorHandle& op,
                    c10::DispatchKeySet keys, torch::jit::Stack* stack, std::unique_lock<FairMutex>& turn) {
  OperatorObserver* observer = session.options.observer.get();
  if (observer) observer->before(op, *stack);
  if (traits.may_wait) turn.unlock();
  if (OperatorKernels* kernels = session.options.kernels.get())
    kernels->run(op, keys, *stack);
  else
    op.redispatchBoxed(keys, stack);
  if (traits.may_wait) turn.lock();
  return session.ledger.workspace_since_mark();
}

/// Runs the call in windows. The observer is told of the kernel on each window instead.
int64_t call_windows(SessionState& session, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack, WindowPlan& plan, OperatorLease& lease) {
  const std::vector<c10::IValue> arguments = torch::jit::last(*stack, plan.argument_uses.size()).vec();
  SessionWindowCall call(session, op, keys, arguments, lease.streamed);
  std::vector<at::Tensor> results = call.run(plan);
  torch::jit::drop(*stack, arguments.size());
  for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  lease.births.assign(call.births().begin(), call.births().end());
  return call.own_bytes();
}

Measured measure(SessionState& session, auto&& call) {
  session.ledger.mark_workspace();
  if (!session.conductor.in_step()) return {0, call()};  // nobody asks for the seconds
  const double waited = session.pager.delayed_seconds();
  const auto start = Clock::now();
  if (session.step_clock) session.step_clock->begin();
  const int64_t own_bytes = call();
  if (session.step_clock) session.step_clock->end();
  const std::chrono::duration<double> took = Clock::now() - start;
  return {took.count() - (session.pager.delayed_seconds() - waited), own_bytes};
}

/// Returns the minimum size at which this call's storages become pages. A call that is run again must find its
/// arguments as they were. On the host small arguments are kept by value. On a GPU reading their values would wait for
/// the GPU, so they become pages, which no operator writes before they were read again.
int64_t least_page_bytes_of(SessionState& session, const OperatorTraits& traits, const c10::OperatorHandle& op,
                            const torch::jit::Stack& stack) {
  const SessionOptions& options = session.options;
  const bool by_page = !session.pager.device().is_host() && options.replay && options.engine == Engine::gate;
  return by_page && is_replayable(traits, op, stack) ? 1 : options.min_page_bytes;
}

/// One call of an operator, from the leases of its arguments to the pages of its results.
class KernelRun {
 public:
  KernelRun(SessionState& session, const OperatorTraits& traits, const c10::OperatorHandle& op,
            c10::DispatchKeySet keys, torch::jit::Stack* stack)
      : session_(session),
        conductor_(session.conductor),
        observer_(session.options.observer.get()),
        traits_(traits),
        op_(op),
        keys_(keys),
        stack_(stack),
        is_measured_(session.is_measured()),
        scope_(traits.name),
        turn_(session.share->turns),
        plan_(plan_windows(session, traits, op, *stack)),
        lease_(session) {}

  void run() {
    if (reads_arguments(traits_, *stack_)) lease_arguments();
    if (is_measured_) trace_call();
    lease_.births.clear();
    const Measured measured = call();
    register_outputs(session_, traits_, *stack_, op_.schema().returns().size(), lease_.births);
    if (is_measured_) conductor_.end_operator(measured.seconds, measured.own_bytes, lease_.births);
    if (observer_ && !plan_) observer_->after(op_, *stack_);
    lease_.release();
    if (is_measured_) publish();
    turn_.unlock();
    if (observer_) observer_->released(session_.pager);
  }

 private:
  void lease_arguments() {
    lease_.collect(traits_, *stack_, plan_.get(), least_page_bytes_of(session_, traits_, op_, *stack_));
    lease_.lease(op_, *stack_);
    if (traits_.shares_memory)  // one page cannot stand for several storages
      for (const PageUse& use : lease_.uses) session_.pager.unregister_resident(*use.page);
    if (traits_.keeps_arguments)
      for (const c10::IValue& value : torch::jit::last(*stack_, traits_.writes.size()))
        visit_storages(value, pin_to_device);
  }

  void trace_call() {
    conductor_.begin_operator({&op_.schema(), traits_.name, is_replayable(traits_, op_, *stack_)}, lease_.uses,
                              lease_.streamed, lease_.births);
    for (int32_t slot : conductor_.recipes_here())
      session_.recipes.record_call(slot, conductor_.page_of_slot(slot), traits_, op_, keys_, *stack_,
                                   plan_ ? traits_.windows : nullptr);
  }

  Measured call() {
    auto kernel = [&] {
      return plan_ ? call_windows(session_, op_, keys_, stack_, *plan_, lease_)
                   : call_kernel(session_, traits_, op_, keys_, stack_, turn_);
    };
    if (is_measured_) return measure(session_, kernel);
    kernel();
    return {};
  }

  void publish() {
    for (int32_t slot : conductor_.recipes_here())
      session_.recipes.record_result(slot, conductor_.page_of_slot(slot), op_, *stack_);
    conductor_.issue_copies();
  }

  SessionState& session_;
  Conductor& conductor_;
  OperatorObserver* const observer_;
  const OperatorTraits& traits_;
  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  torch::jit::Stack* const stack_;
  const bool is_measured_;
  const OperatorScope scope_;
  std::unique_lock<FairMutex> turn_;
  const std::unique_ptr<WindowPlan> plan_;
  OperatorLease lease_;
};

/// Runs the call. The Session's own errors leave it as its user asked for.
void run_kernel(SessionState& session, const OperatorTraits& traits, const c10::OperatorHandle& op,
                c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& translate = session.options.translate_error;
  try {
    KernelRun(session, traits, op, keys, stack).run();
  } catch (const OutOfBudget& error) {
    if (translate) translate(error);
    throw;
  } catch (const DiskError& error) {
    if (translate) translate(error);
    throw;
  }
}

/// True for a view of a dense tensor. Views of sparse tensors are excluded, because they read the tensors inside.
bool is_view(const OperatorTraits& traits, c10::DispatchKeySet keys) {
  const c10::DispatchKey backend = keys.highestPriorityTypeId();
  return traits.kind == OperatorKind::view && (backend == c10::DispatchKey::CPU || backend == c10::DispatchKey::CUDA);
}

/// Runs an operator whose kernel is not LibTorch's. The gate stays open meanwhile, so that the operators that the
/// kernel and the call's windows are made of come here too.
void run_with_other_kernels(SessionState& session, const OperatorTraits& traits, const c10::OperatorHandle& op,
                            c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static thread_local bool is_inside = false;
  if (is_inside || is_view(traits, keys)) return session.options.kernels->run(op, keys, *stack);
  is_inside = true;
  const auto leave = [](bool* inside) { *inside = false; };
  const std::unique_ptr<bool, decltype(leave)> scope(&is_inside, leave);
  run_kernel(session, traits, op, keys, stack);
}

/// True for a call of a refused operator that has ended when the operator returns.
bool is_allowed(const OperatorTraits& traits, const torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, traits.writes.size());
  return traits.is_collective && is_blocking_collective({arguments.data(), arguments.size()});
}

/// Runs a call that the gate does not refuse and that is no composite's.
void pass(SessionState* session, const OperatorTraits* traits, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
          torch::jit::Stack* stack) {
  if (traits && session->options.kernels) return run_with_other_kernels(*session, *traits, op, keys, stack);
  c10::impl::ExcludeDispatchKeyGuard closed(kGateKey);
  if (!traits || is_view(*traits, keys)) return op.redispatchBoxed(keys, stack);
  if (keys.has_backend(c10::BackendComponent::CUDABit)) session->share->device.require_compute_order();
  run_kernel(*session, *traits, op, keys, stack);
}

/// Runs a call whose result is a gradient that autograd keeps, or a bucket of gradients, and counts it as that. Between
/// such calls DistributedDataParallel asks whether gradient and bucket share memory, without an operator. So the
/// gradient may be compared until its copy is in the bucket, and a bucket always.
void pass_gradient(SessionState& session, const OperatorTraits& traits, GradientWork work,
                   const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const bool is_copied = traits.kind != OperatorKind::view;
  PageTable& pages = session.pager.table();
  for (const c10::IValue& value : torch::jit::last(*stack, is_copied ? traits.writes.size() : 0))
    visit_storages(value, [&](c10::StorageImpl& storage) { pages.locked([&] { let_compare(storage, false); }); });
  pass(&session, &traits, op, keys, stack);
  visit_storages(stack->back(), [&](c10::StorageImpl& storage) {
    pages.locked([&] {
      give_purpose(storage, pages, Category::gradients);
      if (work == GradientWork::hooked) let_compare(storage, true);
    });
  });
}

/// True for a call on tensors without bytes, with which LibTorch traces for torch.cond, torch.export and the like. What
/// a trace computes on real tensors comes to the gate by itself, below LibTorch's mode.
bool is_without_bytes(c10::DispatchKeySet keys) {
  using Modes = c10::impl::TorchDispatchModeTLS;
  if (keys.has_backend(c10::BackendComponent::MetaBit)) return true;
  return keys.has(c10::DispatchKey::Python) && Modes::get_mode(c10::impl::TorchDispatchModeKey::FAKE);
}

/// True for a call on a tensor subclass that is written in Python, such as DTensor, or inside a mode written in Python.
bool is_for_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::Python) && !op.hasKernelForDispatchKey(c10::DispatchKey::Python);
}

/// Calls Python's handler, as LibTorch's fallback does, but leaves the gate open. So the operators that the handler
/// calls come to the gate with the tensors that they really use, which a subclass holds inside.
void dispatch_to_python(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr auto kUpToPython = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python)
                                   .add(c10::DispatchKey::Python)
                                   .add(kGateKey);
  const c10::impl::ExcludeDispatchKeyGuard above(c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^ kUpToPython);
  (*c10::impl::getGlobalPyInterpreter())->dispatch(op, stack);
}

void gate(const c10::OperatorHandle& op, c10::DispatchKeySet dispatch_keys, torch::jit::Stack* stack) {
  const auto keys = dispatch_keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kGateKey);
  if (is_without_bytes(keys)) return op.redispatchBoxed(keys, stack);
  SessionState* session = SessionState::current();
  if (session && is_for_python(op, keys)) return dispatch_to_python(op, stack);
  const OperatorTraits* traits = session ? &session->traits(op) : nullptr;
  // A composite's parts are dispatched with the gate still on, so the gate sees each of them.
  if (traits && runs_as_parts(*traits, op, keys)) return op.redispatchBoxed(keys, stack);
  if (traits && traits->kind == OperatorKind::refused && !is_allowed(*traits, *stack))
    TORCH_CHECK(false, "[gate] ", traits->name, " ", traits->refusal);
  if (traits && traits->keeps_gradients)
    if (const GradientWork work = gradient_work(); work != GradientWork::none)
      return pass_gradient(*session, *traits, work, op, keys, stack);
  pass(session, traits, op, keys, stack);
}

}  // namespace

void install_gate() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Lives forever, because it is the one registration of the process.
    auto* library = new torch::Library(torch::Library::IMPL, "_", kGateKey, __FILE__, __LINE__);
    try {
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&gate>());
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string("[gate] LibTorch's dispatch key 'Fake' is taken by another library of this "
                                           "process, so Spillway cannot see operators: ") +
                               error.what());
    }
  });
}

}  // namespace spillway::swap
