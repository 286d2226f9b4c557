#include "swap/gate/session_state.h"

#include <ATen/Parallel.h>

#include <utility>

#include "swap/gate/operator_kernels.h"
#include "swap/schedule/schedule_inputs.h"

namespace spillway::swap {
namespace {

ScheduleInputs schedule_inputs(const SessionOptions& options, const DevicePager& pager) {
  ScheduleInputs inputs;
  inputs.budget_bytes = options.budget_bytes;
  const bool on_cpu = pager.device.torch_device().is_cpu();
  inputs.replay = options.replay && options.engine == Engine::gate;
  if (pager.disk) inputs.host_budget_bytes = pager.host.capacity_bytes() - pager.disk->staging_bytes();
  if (const int cores = std::thread::hardware_concurrency(); on_cpu && cores > 0)
    inputs.rates.compute_slowdown = loss_beside_a_thread(options.ranks_of_host, at::get_num_threads(), cores);
  if (options.budget_bytes != kUnlimitedBytes) inputs.slack_bytes = options.budget_bytes / 100;
  return inputs;
}

/// Returns a place below `count`, a power of two, that spreads pointers evenly (Fibonacci hashing).
size_t place_of(const void* pointer, size_t count) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  return (reinterpret_cast<uintptr_t>(pointer) * kGoldenRatio) >> 32 & (count - 1);
}

SessionOptions with_device_defaults(SessionOptions options) {
  options.split_bytes = split_bytes_on(!c10::Device(options.device).is_cpu(), options.split_bytes);
  return options;
}

std::unique_ptr<ComputeClock> make_clock(const SessionOptions& options, Device& device) {
  auto clock = options.kernels ? options.kernels->make_clock() : nullptr;
  return clock ? std::move(clock) : device.make_clock();
}

}  // namespace

void EndGate::operator()(GateGuards* guards) const noexcept {
  if (std::this_thread::get_id() == owner)
    delete guards;
  else
    ::operator delete(guards);
}

SessionState::SessionState(SessionOptions given)
    : options(with_device_defaults(std::move(given))),
      share(share_device(options)),
      pager(share->pager),
      ledger(share->device.ledger()),
      clock(make_clock(options, share->device)),
      recipes(pager, options.split_bytes),
      conductor(pager, schedule_inputs(options, *share), options.prefetch, share.get_deleter().user, &recipes),
      owner(std::this_thread::get_id()),
      gate(new GateGuards(scope(/*traced=*/true)), {owner}) {}

SessionState* SessionState::current() {
  const SessionScope* scope = SessionScope::current();
  return scope ? scope->session : nullptr;
}

bool SessionState::in_owners_work() const {
  if (std::this_thread::get_id() == owner) return true;
  if (share->device.torch_device().is_cpu()) return false;
  const SessionScope* scope = SessionScope::current();
  return scope && scope->session == this && scope->traced;
}

const OperatorTraits& SessionState::traits(const c10::OperatorHandle& op) {
  const c10::FunctionSchema* schema = &op.schema();
  auto& recent = recent_traits_[place_of(schema, recent_traits_.size())];
  const KnownTraits* known = recent.load(std::memory_order_acquire);
  if (known && known->first == schema) return known->second;
  std::lock_guard lock(traits_mutex_);
  auto entry = traits_.find(schema);
  if (entry == traits_.end()) entry = traits_.emplace(schema, traits_of(op)).first;
  recent.store(&*entry, std::memory_order_release);
  return entry->second;
}

}  // namespace spillway::swap
