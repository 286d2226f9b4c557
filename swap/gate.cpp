// The gate: one boxed fallback that sees every operator of a Session.
#include <torch/library.h>

#include <chrono>
#include <mutex>

#include "swap/list_error.h"
#include "swap/session_state.h"
#include "swap/storage_page.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

/// The pages of one operator call: leased while it lives.
class OperatorLease {
 public:
  explicit OperatorLease(Session::State& session) : session_(session) {}
  OperatorLease(const OperatorLease&) = delete;
  OperatorLease& operator=(const OperatorLease&) = delete;
  ~OperatorLease() { release(); }

  void collect(const OperatorTraits& traits, const torch::jit::Stack& stack) {
    const size_t count = traits.writes.size();
    int32_t position = 0;
    for (size_t a = 0; a < count; ++a)
      visit_storages(torch::jit::peek(stack, a, count), [&](c10::StorageImpl& storage) {
        bool is_new = false;
        Page* page = page_or_register(storage, session_.pager, session_.options.min_page_bytes,
                                      session_.conductor.user(), is_new);
        if (page) uses.push_back({page, traits.writes[a], kNextUseKept});
        if (is_new) births.push_back({page, position});
        ++position;
      });
  }
  void lease() {
    session_.pager.lease(uses, session_.conductor.user());
    leased_ = true;
  }
  void release() {
    if (leased_) session_.pager.unlease(uses);
    leased_ = false;
  }

  c10::SmallVector<PageUse, 16> uses;
  c10::SmallVector<Birth, 8> births;

 private:
  Session::State& session_;
  bool leased_ = false;
};

/// New storages among the results become pages, counted as what the surrounding scope says they are.
void register_outputs(Session::State& session, const OperatorTraits& traits, const torch::jit::Stack& stack,
                      size_t results, c10::SmallVector<Birth, 8>& births) {
  const Category category = CategoryScope::current(Category::activations);
  int32_t position = kOutputPosition;
  for (size_t r = 0; r < results; ++r)
    visit_storages(torch::jit::peek(stack, r, results), [&](c10::StorageImpl& storage) {
      bool is_new = false;
      if (Block* block = session.share->device.find_block(storage._mutable_data_ptr_no_checks());
          block && block->category == Category::workspace)
        session.share->device.memory().recategorize(block, category);
      if (traits.kind == OperatorKind::memory) return;
      Page* page =
          page_or_register(storage, session.pager, session.options.min_page_bytes, session.conductor.user(), is_new);
      if (is_new) births.push_back({page, position});
      ++position;
    });
}

struct Measured {
  double seconds = 0;     ///< waits for copies excluded
  int64_t own_bytes = 0;  ///< outputs and scratch at their largest
};

/// An operator that may wait for other threads gives up its turn meanwhile, so that they can get there.
void call_kernel(const OperatorTraits& traits, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack, std::unique_lock<Turns>& turn) {
  if (traits.may_wait) turn.unlock();
  op.redispatchBoxed(keys, stack);
  if (traits.may_wait) turn.lock();
}

Measured measure(Session::State& session, auto&& call) {
  session.ledger.mark_workspace();
  const double waited = session.pager.exposed_seconds();
  const auto start = Clock::now();
  if (session.clock) session.clock->begin();
  call();
  if (session.clock) session.clock->end();
  const std::chrono::duration<double> took = Clock::now() - start;
  return {took.count() - (session.pager.exposed_seconds() - waited), session.ledger.workspace_since_mark()};
}

void run_kernel(Session::State& session, const OperatorTraits& traits, const c10::OperatorHandle& op,
                c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const bool tracing = session.tracing();
  Conductor& conductor = session.conductor;
  OperatorScope scope(traits.name);
  std::unique_lock turn(session.share->turns);
  OperatorLease lease(session);
  if (traits.kind != OperatorKind::shape_only && traits.kind != OperatorKind::memory) {
    lease.collect(traits, *stack);
    try {
      lease.lease();
    } catch (const OutOfBudget& error) {
      throw naming_lists(error, op, *stack);
    }
    if (traits.shares_memory)  // one page cannot stand for several storages
      for (const PageUse& use : lease.uses) session.pager.bring_home(*use.page);
  }
  if (tracing) {
    conductor.begin_operator({&op.schema(), traits.name, is_replayable(traits, op, *stack)},
                             {lease.uses.data(), lease.uses.size()}, {lease.births.data(), lease.births.size()});
    for (int32_t slot : conductor.recipes_here())
      session.recipes.note_call(slot, conductor.page_of_slot(slot), op, keys, *stack);
  }
  if (session.options.observer) session.options.observer->before(op, *stack);

  Measured measured;
  auto call = [&] { call_kernel(traits, op, keys, stack, turn); };
  if (tracing)
    measured = measure(session, call);
  else
    call();
  lease.births.clear();
  register_outputs(session, traits, *stack, op.schema().returns().size(), lease.births);
  if (tracing) {
    conductor.end_operator(measured.seconds, measured.own_bytes, {lease.births.data(), lease.births.size()});
    for (int32_t slot : conductor.recipes_here())
      session.recipes.note_result(slot, conductor.page_of_slot(slot), op, *stack);
  }
  if (session.options.observer) session.options.observer->after(op, *stack);
  lease.release();
  if (tracing) conductor.act();
  turn.unlock();
  if (session.options.observer) session.options.observer->released(session.pager);
}

/// Views of sparse tensors read the tensors inside.
bool is_view(const OperatorTraits& traits, c10::DispatchKeySet keys) {
  const c10::DispatchKey backend = keys.highestPriorityTypeId();
  return traits.kind == OperatorKind::view && (backend == c10::DispatchKey::CPU || backend == c10::DispatchKey::CUDA);
}

void gate(const c10::OperatorHandle& op, c10::DispatchKeySet dispatch_keys, torch::jit::Stack* stack) {
  const auto keys = dispatch_keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kGateKey);
  Session::State* session = Session::State::current();
  const OperatorTraits* traits = session ? &session->traits(op) : nullptr;
  // A composite's parts are dispatched with the gate still on, so each is seen for itself.
  if (traits && runs_as_parts(*traits, op, keys)) return op.redispatchBoxed(keys, stack);
  c10::impl::ExcludeDispatchKeyGuard closed(kGateKey);
  if (!traits || is_view(*traits, keys)) return op.redispatchBoxed(keys, stack);
  TORCH_CHECK(traits->kind != OperatorKind::refused, "[gate] ", traits->name,
              " is asynchronous and does not say what it writes, so it cannot run inside a Session; use ",
              "spillway's collectives (ddl/operators.h), or call it while no Session is open");
  run_kernel(*session, *traits, op, keys, stack);
}

}  // namespace

void install_gate() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Lives for ever: the one registration of the process.
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

}  // namespace spillway
