#include "swap/session.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/memory/fork.h"
#include "swap/gate/session_state.h"
#include "swap/gate/storage_page.h"

namespace spillway {
using namespace swap;

namespace {

/// True while LibTorch traces this thread's operators on tensors without bytes, as torch.compile does.
bool is_traced() {
  using Modes = c10::impl::TorchDispatchModeTLS;
  using Mode = c10::impl::TorchDispatchModeKey;
  for (Mode mode : {Mode::FAKE, Mode::PROXY, Mode::FUNCTIONAL})
    if (Modes::get_mode(mode)) return true;
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Functionalize);
}

}  // namespace

Session::Session(SessionOptions options) {
  options.validate();
  if (is_traced())
    throw std::logic_error(
        "[session] LibTorch traces this thread's operators, as torch.compile does, so a Session could not page them; "
        "open it around code that runs eagerly");
  if (SessionState::current())
    throw std::logic_error("[session] this thread has a Session open (or has entered one); close it first");
  install_gate();
  state_ = std::make_unique<SessionState>(std::move(options));
}

Session::~Session() = default;

Session::Step Session::step(std::string_view kind) {
  TORCH_CHECK(std::this_thread::get_id() == state_->owner,
              "[session.step] called on another thread than the Session's");
  TORCH_CHECK(
      gate_is_as_opened(),
      "[session.step] the Session's operators are not seen any more: it was opened in a scope that has ended and "
      "put this thread's state back, such as inference mode. Close it, and open it outside");
  state_->conductor.begin_step(kind);
  if (ComputeClock* clock = state_->clock.get()) {
    clock->forget();  // the marks of an abandoned step, and of stalls between steps
    state_->step_clock = clock->is_free() || state_->conductor.wants_times() ? clock : nullptr;
  }
  Step step(this);  // which is forgotten if the device fails here
  state_->share->device.begin_external();
  return step;
}

Session::Step::Step(Session* session) : session_(session), exceptions_(std::uncaught_exceptions()) {}
Session::Step::Step(Step&& other) noexcept
    : session_(std::exchange(other.session_, nullptr)), exceptions_(other.exceptions_) {}

Session::Step::~Step() {
  if (!session_ || forked_while_paging()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    forget();
    return;
  }
  try {
    finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[session.step] no schedule was made: %s\n", error.what());
  }
}

void Session::Step::finish() {
  Session* session = std::exchange(session_, nullptr);
  if (!session) return;
  SessionState& state = *session->state_;
  try {
    state.share->device.charge_external();  // first, so that the next steps are planned beside it
    ComputeClock* clock = std::exchange(state.step_clock, nullptr);
    const bool is_timed = clock || !state.clock;  // by the clock, or by the host's
    state.conductor.end_step(clock ? clock->take() : std::vector<ComputeClock::Times>(), is_timed);
  } catch (...) {
    state.conductor.abandon_step();
    throw;
  }
}

void Session::Step::forget() {
  Session* session = std::exchange(session_, nullptr);
  if (!session) return;
  session->state_->conductor.abandon_step();
  try {
    session->state_->share->device.charge_external();
  } catch (const std::exception&) {  // destructors come here; the next step charges it
  }
}

struct Session::Entry::Guards {
  explicit Guards(SessionState& state) : gate(state.scope(/*traced=*/false)) {}
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
  stats.library_bytes = state_->share->device.library_bytes();
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
MessageListener& Session::messages() {
  return state_->conductor.messages();
}
Pager& Session::pager() {
  return state_->pager;
}
Ledger& Session::ledger() {
  return state_->ledger;
}

struct Resident::Leases {
  explicit Leases(std::shared_ptr<DevicePager> pager) : device(std::move(pager)) {}
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;
  ~Leases() {
    if (pager) pager->unlease(uses);
  }

  const std::shared_ptr<DevicePager> device;  ///< outlives the Session if need be
  std::vector<std::shared_ptr<void>> held;    ///< storages
  Pager* pager = nullptr;
  std::vector<PageUse> uses;
};

Resident::Resident(const at::Tensor& tensor, bool write) : leases_(std::make_unique<Leases>(DevicePager::current())) {
  if (forked_while_paging()) {  // nothing moves in a child, and nobody can bring bytes back: asking for them says so
    visit_storages(tensor, [](c10::StorageImpl& storage) { (void)storage.data(); });
    return;
  }
  Leases& leases = *leases_;
  DevicePager* device = leases.device.get();
  // The turn is also needed because beside the operator of another thread there may be no room.
  const auto turn = DevicePager::take_turn(device);
  visit_storages(tensor, [&](c10::StorageImpl& storage) {
    leases.held.push_back(hold_in_place(storage));
    auto find = [&] { return page_of(storage); };
    if (Page* page = device ? device->pager.table().locked(find) : find())
      leases.uses.push_back({page, write, kNextUseKept});
  });
  if (leases.uses.empty()) return;
  Pager& pager = pager_of(*leases.uses.front().page);
  pager.lease(leases.uses);
  leases.pager = &pager;
}
Resident::Resident(Resident&& other) noexcept = default;
Resident::~Resident() = default;
Resident resident(const at::Tensor& tensor) {
  return Resident(tensor, true);
}
Resident resident_read(const at::Tensor& tensor) {
  return Resident(tensor, false);
}
void note_raw_write(const at::Tensor& tensor) {
  const std::shared_ptr<DevicePager> device = DevicePager::current();
  const auto turn = DevicePager::take_turn(device.get());
  std::vector<PageUse> uses;
  if (device)
    visit_storages(tensor, [&](c10::StorageImpl& storage) {
      Page* page = device->pager.table().locked([&] {
        Page* found = page_of(storage);
        return found && found->on_device() ? found : nullptr;
      });
      if (page) uses.push_back({page, /*write=*/true, kNextUseKept});
    });
  if (uses.empty()) return;
  Pager& pager = pager_of(*uses.front().page);
  pager.lease(uses);
  pager.unlease(uses);
}

}  // namespace spillway
