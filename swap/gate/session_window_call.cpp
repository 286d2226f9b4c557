#include "swap/gate/session_window_call.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/device/device.h"
#include "core/interrupted.h"
#include "swap/gate/operator_kernels.h"
#include "swap/gate/operator_observer.h"
#include "swap/gate/session_state.h"
#include "swap/gate/storage_page.h"
#include "swap/windows/tensor_layout.h"

namespace spillway::swap {
namespace {

/// Keeps a page where it is while it lives: resident, or absent with its host copy in place.
class PagePin {
 public:
  /// Pins the page. Throws as WindowAccess::pin() does.
  PagePin(Pager& pager, Page* page, bool write, UserId user)
      : pager_(pager), use_{.page = page, .write = write}, resident_(pager.windows().pin(use_, user)) {}
  PagePin(const PagePin&) = delete;
  PagePin& operator=(const PagePin&) = delete;
  ~PagePin() { pager_.windows().unpin(use_, resident_); }
  bool resident() const { return resident_; }

 private:
  Pager& pager_;
  const PageUse use_;
  const bool resident_;
};

/// Returns `part` on the device bytes of its page, as memory that is not paged. The caller holds the page.
at::Tensor on_device(const at::Tensor& part, const Page& page) {
  char* data = static_cast<char*>(page.block->data) + part.storage_offset() * part.element_size();
  return at::for_blob(data, part.sizes())
      .strides(part.strides())
      .options(part.options().requires_grad(false))
      .target_device(part.device())
      .make_tensor();
}

WindowCopy copy_of(const at::Tensor& part, const at::Tensor& memory) {
  std::vector<StridedDimension> dimensions;
  for (int64_t d : memory_order(part)) dimensions.push_back({part.size(d), part.stride(d), memory.stride(d)});
  return make_window_copy(part.element_size(), part.storage_offset(), std::move(dimensions));
}

int64_t workspace_bytes(const Ledger& ledger) {
  return ledger.used_by_category()[Category::workspace];
}

}  // namespace

SessionWindowCall::SessionWindowCall(SessionState& session, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                     OperatorArguments arguments, std::span<const PageUse> streamed)
    : WindowCall(op, keys, arguments),
      session_(session),
      streamed_(streamed),
      is_measured_(session.is_measured()),
      workspace_at_start_(is_measured_ ? workspace_bytes(session.ledger) : 0),
      workspace_at_mark_(workspace_at_start_) {
  if (is_measured_) session_.ledger.mark_workspace();
  admit_pages();
}

std::vector<at::Tensor> SessionWindowCall::run(WindowPlan& plan) {
  constexpr std::string_view kWritten =
      " runs in windows and has changed a part of its arguments, which are neither as they were nor as they were to "
      "be: go back to a checkpoint instead of repeating the step";
  try {
    return plan.run(*this);
  } catch (const Interrupted&) {
    throw;
  } catch (const DiskError& error) {
    if (!has_written()) throw;
    throw DiskError(str(error.what(), "; ", op().schema().name(), kWritten));
  } catch (const OutOfBudget& error) {
    if (!has_written()) throw;
    throw OutOfBudget(str(error.what(), "; ", op().schema().name(), kWritten), error.requested_bytes(),
                      error.budget_bytes());
  } catch (c10::Error& error) {
    if (has_written()) error.add_context(str(op().schema().name(), kWritten));
    throw;
  } catch (const std::exception& error) {
    if (!has_written()) throw;
    throw std::runtime_error(str(error.what(), "; ", op().schema().name(), kWritten));
  }
}

bool SessionWindowCall::has_written() const {
  if (!computed_) return false;
  const auto& writes = session_.traits(op()).writes;
  return std::find(writes.begin(), writes.end(), true) != writes.end();
}

/// Brings absent pages in where that saves a copy later. For a page whose next use is in sight, pages that are used
/// after that may leave. Without a schedule to follow, there must be free room.
void SessionWindowCall::admit_pages() {
  const bool following = is_measured_ && session_.conductor.following();
  for (const PageUse& use : streamed_)
    if (!following || use.next_use != kNextUseUnknown)
      session_.pager.windows().prefetch_for_window(*use.page, following ? use.next_use : kNextUseUnknown, streamed_);
}

Page* SessionWindowCall::page_of(const at::Tensor& tensor) const {
  const c10::StorageImpl& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return session_.pager.table().locked([&] { return swap::page_of(storage); });
}

void SessionWindowCall::fill(const at::Tensor& destination, const at::Tensor& part) {
  Page* page = page_of(part);
  if (!page) return WindowCall::fill(destination, part);
  PagePin pin(session_.pager, page, /*write=*/false, session_.conductor.user());
  if (pin.resident())
    destination.copy_(on_device(part, *page));
  else
    session_.pager.windows().read_window(*page, copy_of(part, destination), destination.data_ptr());
}

void SessionWindowCall::write(const at::Tensor& part, const at::Tensor& value) {
  Page* page = page_of(part);
  if (!page) return WindowCall::write(part, value);
  PagePin pin(session_.pager, page, /*write=*/true, session_.conductor.user());
  if (pin.resident())
    on_device(part, *page).copy_(value);
  else
    session_.pager.windows().write_window(*page, copy_of(part, value), value.const_data_ptr());
}

/// Uses the page's own bytes if it is resident.
bool SessionWindowCall::view(Window& window) {
  Page* page = page_of(window.part);
  if (!page) return WindowCall::view(window);
  if (copies_only_ || !is_aligned_as_a_copy(window.part, device().type())) return false;
  auto pin = std::make_shared<PagePin>(session_.pager, page, window.access != Access::read, session_.conductor.user());
  if (!pin->resident()) return false;
  window.tensor = on_device(window.part, *page);
  window.is_view = true;
  window.pin = std::move(pin);
  return true;
}

void SessionWindowCall::call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto run_kernel = [&] {
    if (OperatorKernels* kernels = session_.options.kernels.get()) return kernels->run(op, keys(), stack);
    WindowCall::call(op, stack);
  };
  OperatorObserver* observer = session_.options.observer.get();
  if (!observer) return run_kernel();
  const torch::jit::Stack arguments = stack;  // keeps the arguments beyond the call
  observer->before(op, stack);
  run_kernel();
  observer->after(op, stack);
}

void SessionWindowCall::begin_attempt() {
  record_need(0);
}

void SessionWindowCall::finish_attempt() {
  computed_ = true;
  int64_t viewed_bytes = 0;
  for (const Window& window : windows())
    if (window.pin) viewed_bytes += DeviceMemory::charge_of(window.tensor.nbytes());
  WindowCall::finish_attempt();
  record_need(viewed_bytes);
  if (OperatorObserver* observer = session_.options.observer.get()) observer->released(session_.pager);
}

/// Drops the views after the budget ran out, because without them every page of the operator can leave.
bool SessionWindowCall::can_use_less() {
  const bool viewed = std::any_of(windows().begin(), windows().end(), [](const Window& w) { return w.pin != nullptr; });
  drop_windows();
  if (!viewed) return false;
  copies_only_ = true;
  if (is_measured_) session_.ledger.mark_workspace();
  return true;
}

at::Tensor SessionWindowCall::output(int32_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                                     at::ScalarType type) {
  const int64_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  if (bytes < std::max<int64_t>(1, session_.options.min_page_bytes))
    return WindowCall::output(index, sizes, strides, type);
  const Category category = CategoryScope::current(Category::activations);
  const UserId user = session_.conductor.user();
  const int32_t position = kOutputPosition + index;
  const std::optional<int64_t> next_use =
      session_.is_measured() ? session_.conductor.expected_next_use(position) : std::nullopt;
  Block* block = session_.pager.windows().try_allocate(bytes, category, next_use.value_or(-1), streamed_);
  at::Tensor tensor = make_paged_tensor(*find_device(device()), session_.pager, block, category, user,
                                        {.sizes = sizes, .strides = strides, .type = type});
  births_.push_back({.page = page_of(tensor), .position = position, .streamed = true});
  return tensor;
}

int64_t SessionWindowCall::own_bytes() {
  record_need(0);
  return own_bytes_;
}

/// Counts the workspace's peak since the last mark.
void SessionWindowCall::record_need(int64_t viewed_bytes) {
  if (!is_measured_) return;
  Ledger& ledger = session_.ledger;
  own_bytes_ =
      std::max(own_bytes_, workspace_at_mark_ - workspace_at_start_ + ledger.workspace_since_mark() + viewed_bytes);
  workspace_at_mark_ = workspace_bytes(ledger);
  ledger.mark_workspace();
}

}  // namespace spillway::swap
