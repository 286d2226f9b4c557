#include "swap/session.h"

#include <ATen/Parallel.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/memory/fork.h"
#include "swap/gate/session_state.h"
#include "swap/gate/storage_page.h"

namespace spillway {
namespace {

/// Under which kind a Session hangs on LibTorch's thread-local debug information; nothing on a server uses this one.
constexpr auto kInfoKind = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;

struct SessionInfo final : c10::DebugInfoBase {
  SessionInfo(Session::State& of, bool traced) : state(&of), alive(of.alive), traced(traced) {}
  Session::State* const state;
  const std::weak_ptr<const void> alive;  ///< LibTorch hands this on to work that may run after the Session
  const bool traced;
};

/// nullptr outside Sessions, after the one that the thread was given, and in children of fork().
SessionInfo* current_info() {
  auto* info = static_cast<SessionInfo*>(c10::ThreadLocalDebugInfo::get(kInfoKind));
  return info && !info->alive.expired() && !forked_while_paging() ? info : nullptr;
}

ScheduleInputs schedule_inputs(const SessionOptions& options, const DevicePager& pager) {
  ScheduleInputs inputs;
  inputs.budget_bytes = options.budget_bytes;
  const bool on_cpu = pager.device.torch_device().is_cpu();
  inputs.replay = options.replay && options.engine == Engine::gate;
  if (pager.disk) inputs.host_budget_bytes = pager.host.capacity_bytes() - pager.disk->staging_bytes();
  // A copying thread takes one core from operators that use them all.
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (on_cpu && cores > 0 && at::get_num_threads() >= cores) inputs.rates.compute_slowdown = 1.0 / cores;
  if (options.budget_bytes != kUnlimitedBytes) inputs.slack_bytes = options.budget_bytes / 100;
  return inputs;
}

}  // namespace

std::string_view name(Engine engine) noexcept {
  return engine == Engine::gate ? "gate" : "unified";
}

void SessionOptions::validate() const {
  if (device != "cpu" && device != "cuda" && !device.starts_with("cuda:"))
    throw BadRequest(str("SessionOptions.device is '", device, "'; allowed is cpu, cuda or cuda:N"));
  if (engine == Engine::unified && device == "cpu")
    throw BadRequest(
        "SessionOptions.engine is unified, which pages by CUDA's Unified Memory; it needs a card (device cuda or "
        "cuda:N), and on the cpu the engine is gate");
  if (engine == Engine::unified && (host_budget_bytes != kUnlimitedBytes || !disk_directory.empty()))
    throw BadRequest(
        "SessionOptions.engine is unified, whose host memory is the driver's; a host budget and a disk are the gate's");
  if (budget_bytes <= 0)
    throw BadRequest(str("SessionOptions.budget_bytes is ", budget_bytes, "; it must be positive"));
  if (host_budget_bytes <= 0)
    throw BadRequest(str("SessionOptions.host_budget_bytes is ", host_budget_bytes, "; it must be positive"));
  if (min_page_bytes < 1)
    throw BadRequest(str("SessionOptions.min_page_bytes is ", min_page_bytes, "; it must be at least 1"));
  if (split_bytes <= 0) throw BadRequest(str("SessionOptions.split_bytes is ", split_bytes, "; it must be positive"));
  if (small_page_bytes < 0)
    throw BadRequest(str("SessionOptions.small_page_bytes is ", small_page_bytes, "; it must not be negative"));
}

GateGuards::GateGuards(Session::State& state, bool traced)
    : session(kInfoKind, std::make_shared<SessionInfo>(state, traced)), key(kGateKey) {}

Session::State::State(SessionOptions given)
    : options(std::move(given)),
      share(DevicePager::join(options)),
      pager(share->pager),
      ledger(share->device.ledger()),
      clock(share->device.make_clock()),
      recipes(pager, options.split_bytes),
      conductor(pager, schedule_inputs(options, *share), options.prefetch, share.get_deleter().user, &recipes),
      owner(std::this_thread::get_id()) {
  gate.emplace(*this, /*traced=*/true);
}

Session::State* Session::State::current() {
  const SessionInfo* info = current_info();
  return info ? info->state : nullptr;
}

bool Session::State::in_owners_work() const {
  if (std::this_thread::get_id() == owner) return true;
  if (share->device.torch_device().is_cpu()) return false;
  const SessionInfo* info = current_info();
  return info && info->state == this && info->traced;
}

const OperatorTraits& Session::State::traits(const c10::OperatorHandle& op) {
  const c10::FunctionSchema* schema = &op.schema();
  {
    std::shared_lock lock(traits_mutex);
    if (auto known = traits_by_schema.find(schema); known != traits_by_schema.end()) return known->second;
  }
  std::unique_lock lock(traits_mutex);
  return traits_by_schema.try_emplace(schema, traits_of(op)).first->second;
}

Session::Session(SessionOptions options) {
  options.validate();
  if (State::current())
    throw std::logic_error("[session] this thread has a Session open (or has entered one); close it first");
  install_gate();
  state_ = std::make_unique<State>(std::move(options));
}

Session::~Session() = default;

Session::Step Session::step(std::string_view kind) {
  TORCH_CHECK(std::this_thread::get_id() == state_->owner,
              "[session.step] called on another thread than the Session's");
  if (state_->clock) (void)state_->clock->take();  // what an abandoned step left
  state_->conductor.begin_step(kind);
  return Step(this);
}

Session::Step::Step(Session* session) : session_(session), exceptions_(std::uncaught_exceptions()) {}
Session::Step::Step(Step&& other) noexcept
    : session_(std::exchange(other.session_, nullptr)), exceptions_(other.exceptions_) {}

Session::Step::~Step() {
  if (!session_ || forked_while_paging()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    session_->state_->conductor.abandon_step();
    return;
  }
  try {
    finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[session.step] no schedule was made: %s\n", error.what());
    session_->state_->conductor.abandon_step();
  }
}

void Session::Step::finish() {
  if (!session_) return;
  State& state = *session_->state_;
  state.conductor.end_step(state.clock ? state.clock->take() : std::vector<OperatorClock::Times>());
  state.share->device.charge_outside();
  session_ = nullptr;
}

struct Session::Entry::Guards {
  explicit Guards(State& state) : gate(state, /*traced=*/false) {}
  GateGuards gate;
};
Session::Entry::Entry(std::unique_ptr<Guards> guards) : guards_(std::move(guards)) {}
Session::Entry::Entry(Entry&&) noexcept = default;
Session::Entry::~Entry() = default;
Session::Entry Session::enter() {
  return Entry(std::make_unique<Entry::Guards>(*state_));
}

SessionStats Session::stats() const {
  SessionStats stats;
  stats.pager = state_->pager.stats();
  stats.peak_bytes = state_->ledger.peak_bytes();
  stats.peak_by_category = state_->ledger.peak_by_category();
  stats.host_peak_bytes = state_->share->host.peak_bytes() + stats.pager.parked_peak_bytes;
  if (state_->share->disk) {
    const DiskStats disk = state_->share->disk->stats();
    stats.disk_peak_bytes = disk.peak_bytes;
    stats.bytes_to_disk = disk.bytes_written;
    stats.bytes_from_disk = disk.bytes_read;
  }
  stats.operators = state_->conductor.operators();
  stats.deviations = state_->conductor.deviations();
  return stats;
}

void Session::reset_peak() {
  state_->ledger.reset_peak();
}
const StepTrace* Session::trace(std::string_view kind) const {
  return state_->conductor.trace(kind);
}
const Schedule* Session::schedule(std::string_view kind) const {
  return state_->conductor.schedule(kind);
}
std::vector<const StepTrace*> Session::traces() const {
  return state_->conductor.traces();
}
const Need& Session::neediest() const {
  return state_->conductor.neediest();
}
Pager& Session::pager() {
  return state_->pager;
}
Ledger& Session::ledger() {
  return state_->ledger;
}

Resident::Resident(const at::Tensor& tensor, bool write) {
  std::shared_ptr<DevicePager> device = DevicePager::current();
  // Beside the operator of another thread there may also be no room.
  const auto turn = DevicePager::take_turn(device.get());
  visit_storages(tensor, [&](c10::StorageImpl& storage) {
    held_.push_back(hold_in_place(storage));
    auto find = [&] { return page_of(storage); };
    if (Page* page = device ? device->pager.locked(find) : find()) uses_.push_back({page, write, kNextUseKept});
  });
  if (uses_.empty()) return;
  device_ = std::move(device);
  pager_ = &pager_of(*uses_.front().page);
  pager_->lease(uses_);
}
Resident::Resident(Resident&& other) noexcept
    : device_(std::move(other.device_)),
      held_(std::move(other.held_)),
      pager_(std::exchange(other.pager_, nullptr)),
      uses_(std::move(other.uses_)) {}
Resident::~Resident() {
  if (pager_) pager_->unlease(uses_);
}
Resident resident(const at::Tensor& tensor) {
  return Resident(tensor, true);
}
Resident resident_read(const at::Tensor& tensor) {
  return Resident(tensor, false);
}

}  // namespace spillway
