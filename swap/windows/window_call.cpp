#include "swap/windows/window_call.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "core/device/device.h"
#include "core/memory/memory_range.h"
#include "swap/gate/session_state.h"
#include "swap/gate/storage_page.h"
#include "swap/windows/tensor_layout.h"

namespace spillway {
namespace {

/// `part` on the device bytes of its page, as memory that nobody pages. The page is held.
at::Tensor on_device(const at::Tensor& part, const Page& page) {
  char* data = static_cast<char*>(page.block->data) + part.storage_offset() * part.element_size();
  return at::for_blob(data, part.sizes())
      .strides(part.strides())
      .options(part.options().requires_grad(false))
      .target_device(part.device())
      .make_tensor();
}

/// Dimensions by falling stride: the order in which the elements lie.
std::vector<int64_t> memory_order(const at::Tensor& part) {
  std::vector<int64_t> order(static_cast<size_t>(part.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return part.stride(a) > part.stride(b); });
  return order;
}

/// Dense, its elements in the order of the part's.
std::vector<int64_t> packed_strides(const at::Tensor& part) {
  std::vector<int64_t> strides(static_cast<size_t>(part.dim()));
  const std::vector<int64_t> order = memory_order(part);
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[static_cast<size_t>(*d)] = stride;
    stride *= part.size(*d);
  }
  return strides;
}

at::Tensor packed_like(const at::Tensor& part) {
  return at::empty_strided(part.sizes(), packed_strides(part), part.options().requires_grad(false));
}

std::vector<int64_t> strides_of(at::IntArrayRef sizes, at::MemoryFormat format) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).memory_format(format)).strides().vec();
}

WindowCopy copy_of(const at::Tensor& part, const at::Tensor& memory) {
  std::vector<StridedDimension> dimensions;
  for (int64_t d : memory_order(part)) dimensions.push_back({part.size(d), part.stride(d), memory.stride(d)});
  return make_window_copy(part.element_size(), part.storage_offset(), std::move(dimensions));
}

bool same_window(const at::Tensor& a, const at::Tensor& b) {
  return share_storage(a, b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

int64_t workspace_bytes(const Ledger& ledger) {
  return ledger.used_by_category()[static_cast<size_t>(Category::workspace)];
}

/// Where the operator's tensors are (stays_on).
c10::Device device_of(OperatorArguments arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > 0) return value.toTensor().device();
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.defined()) return tensor.device();
  }
  return c10::Device(c10::kCPU);
}

/// The overload that takes the results after the arguments and has a kernel that fills them there.
std::optional<c10::OperatorHandle> out_variant_of(const c10::OperatorHandle& op, c10::Device device) {
  const c10::DispatchKey key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  for (const std::string& overload : {std::string("out"), schema.overload_name() + "_out", std::string("grad_input")}) {
    auto found = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
    if (!found || !found->hasKernelForDispatchKey(key)) continue;
    const std::vector<c10::Argument>& arguments = found->schema().arguments();
    bool alike = arguments.size() == count + schema.returns().size();
    for (size_t a = 0; alike && a < arguments.size(); ++a)
      alike = a < count ? *arguments[a].type() == *schema.arguments()[a].type() : arguments[a].is_out();
    if (alike) return found;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Range> ranges(int64_t total, int64_t step) {
  std::vector<Range> all;
  for (int64_t begin = 0; begin < total; begin += step) all.push_back({begin, std::min(step, total - begin)});
  return all;
}

at::Tensor shape_alone(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, c10::Device device) {
  if (!device.is_cpu()) return at::empty_strided(sizes, strides, at::TensorOptions(type).device(device));
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  auto range = std::make_shared<MemoryRange>(reserve_memory(static_cast<int64_t>(bytes)));
  void* data = range->data();
  return at::for_blob(data, sizes).strides(strides).options(type).deleter([range](void*) {}).make_tensor();
}

at::Tensor shape_alone(const at::Tensor& part) {
  return shape_alone(part.sizes(), packed_strides(part), part.scalar_type(), part.device());
}

at::Tensor shape_alone(at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type, c10::Device device) {
  return shape_alone(sizes, strides_of(sizes, format), type, device);
}

WindowCall::WindowCall(Session::State* session, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       OperatorArguments arguments, std::span<const PageUse> streamed)
    : session_(session),
      device_(device_of(arguments)),
      op_(op),
      out_op_(out_variant_of(op, device_)),
      keys_(keys),
      arguments_(arguments),
      streamed_(streamed),
      counting_(session && session->counting()),
      workspace_at_start_(counting_ ? workspace_bytes(session->ledger) : 0),
      workspace_at_mark_(workspace_at_start_) {
  if (counting_) session_->ledger.mark_workspace();
  if (session_) admit_pages();
}

WindowCall::~WindowCall() = default;

std::vector<at::Tensor> WindowCall::run(WindowPlan& plan) {
  constexpr std::string_view kWritten =
      " runs in windows and has changed a part of its arguments, which are neither as they were nor as they were to "
      "be: go back to a checkpoint instead of repeating the step";
  try {
    return plan.run(*this);
  } catch (const DiskError& error) {
    if (!has_written()) throw;
    throw DiskError(str(error.what(), "; ", op_.schema().name(), kWritten));
  } catch (const OutOfBudget& error) {
    if (!has_written()) throw;
    throw OutOfBudget(str(error.what(), "; ", op_.schema().name(), kWritten), error.requested_bytes(),
                      error.budget_bytes());
  } catch (c10::Error& error) {
    if (has_written()) error.add_context(str(op_.schema().name(), kWritten));
    throw;
  } catch (const std::exception& error) {
    if (!has_written()) throw;
    throw std::runtime_error(str(error.what(), "; ", op_.schema().name(), kWritten));
  }
}

bool WindowCall::has_written() const {
  if (!computed_ || !session_) return false;
  const auto& writes = session_->traits(op_).writes;
  return std::find(writes.begin(), writes.end(), true) != writes.end();
}

/// Absent pages come where that saves a copy later: for one whose next use is in sight, what is used after that may
/// leave; where nothing is known, there must be free room.
void WindowCall::admit_pages() {
  const bool following = counting_ && session_->conductor.following();
  for (const PageUse& use : streamed_)
    if (!following || use.next_use != kNextUseUnknown)
      session_->pager.admit(*use.page, following ? use.next_use : kNextUseUnknown, streamed_);
}

Page* WindowCall::page_of(const at::Tensor& tensor) const {
  if (!session_) return nullptr;
  const c10::StorageImpl& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return session_->pager.locked([&] { return spillway::page_of(storage); });
}

void WindowCall::fill(const at::Tensor& destination, const at::Tensor& part) {
  Page* page = page_of(part);
  if (!page) {
    destination.copy_(part);
    return;
  }
  PagePin pin(session_->pager, page, /*write=*/false, session_->conductor.user());
  if (pin.resident())
    destination.copy_(on_device(part, *page));
  else
    session_->pager.read_window(*page, copy_of(part, destination), destination.data_ptr());
}

void WindowCall::write(const at::Tensor& part, const at::Tensor& value) {
  Page* page = page_of(part);
  if (!page) {
    part.copy_(value);
    return;
  }
  PagePin pin(session_->pager, page, /*write=*/true, session_->conductor.user());
  if (pin.resident())
    on_device(part, *page).copy_(value);
  else
    session_->pager.write_window(*page, copy_of(part, value), value.const_data_ptr());
}

at::Tensor WindowCall::take(const at::Tensor& part, Access access) {
  for (const Window& window : windows_)
    if (same_window(window.part, part)) return window.tensor;
  Window window{.part = part, .tensor = {}, .access = access};
  if (!view(window)) {
    window.tensor = packed_like(part);
    if (access != Access::replace) fill(window.tensor, part);
  }
  windows_.push_back(std::move(window));
  return windows_.back().tensor;
}

/// Uses the page's own bytes if they are there, and one run.
bool WindowCall::view(Window& window) {
  if (!window.part.is_non_overlapping_and_dense()) return false;
  Page* page = page_of(window.part);
  if (!page) {
    window.tensor = window.part;
    window.viewed = true;
    return true;
  }
  if (copies_only_) return false;
  auto pin =
      std::make_unique<PagePin>(session_->pager, page, window.access != Access::read, session_->conductor.user());
  if (!pin->resident()) return false;
  window.tensor = on_device(window.part, *page);
  window.viewed = true;
  window.pin = std::move(pin);
  return true;
}

void WindowCall::call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  OperatorObserver* observer = session_ ? session_->options.observer.get() : nullptr;
  if (!observer) return op.redispatchBoxed(keys_, &stack);
  const torch::jit::Stack arguments = stack;  // outlive the call
  observer->before(op, stack);
  op.redispatchBoxed(keys_, &stack);
  observer->after(op, stack);
}

std::vector<at::Tensor> WindowCall::kernel(std::vector<c10::IValue> arguments) {
  torch::jit::Stack stack = std::move(arguments);
  call(op_, stack);
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) results.push_back(std::move(value).toTensor());
  return results;
}

void WindowCall::kernel_into(std::vector<c10::IValue> arguments, const std::vector<at::Tensor>& results) {
  torch::jit::Stack stack = std::move(arguments);
  for (const at::Tensor& result : results) stack.emplace_back(result);
  call(*out_op_, stack);
}

void WindowCall::begin_attempt() {
  note_need(0);
}

/// Writes back what was not written in place, and lets go of every page.
void WindowCall::finish_attempt() {
  computed_ = true;
  int64_t viewed_bytes = 0;
  for (const Window& window : windows_)
    if (window.pin)
      viewed_bytes += DeviceMemory::charge_of(static_cast<int64_t>(window.tensor.nbytes()));
    else if (!window.viewed && window.access != Access::read)
      write(window.part, window.tensor);
  note_need(viewed_bytes);
  windows_.clear();
  if (session_ && session_->options.observer) session_->options.observer->released(session_->pager);
}

/// After running out: without the views, every page of the operator's can leave.
bool WindowCall::fall_back_to_copies() {
  const bool viewed = std::any_of(windows_.begin(), windows_.end(), [](const Window& w) { return w.pin != nullptr; });
  windows_.clear();
  if (!viewed) return false;
  copies_only_ = true;
  if (counting_) session_->ledger.mark_workspace();
  return true;
}

at::Tensor WindowCall::output(int32_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type)));
  if (!session_ || bytes < std::max<int64_t>(1, session_->options.min_page_bytes))
    return at::empty_strided(sizes, strides, at::TensorOptions(type).device(device_));
  const Category category = CategoryScope::current(Category::activations);
  const UserId user = session_->conductor.user();
  const int32_t position = kOutputPosition + index;
  const std::optional<int64_t> next_use =
      session_->counting() ? session_->conductor.expected_next_use(position) : std::nullopt;
  Block* block = session_->pager.try_allocate(bytes, category, next_use.value_or(-1), streamed_);
  at::Tensor tensor = make_paged_tensor(*find_device(device_), session_->pager, block, category, user,
                                        {.sizes = sizes, .strides = strides, .type = type});
  births_.push_back({.page = page_of(tensor), .position = position, .streamed = true});
  return tensor;
}

at::Tensor WindowCall::output(int32_t index, at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type) {
  return output(index, sizes, strides_of(sizes, format), type);
}

int64_t WindowCall::own_bytes() {
  note_need(0);
  return own_bytes_;
}

/// Counts the workspace's peak since the last note.
void WindowCall::note_need(int64_t viewed_bytes) {
  if (!counting_) return;
  Ledger& ledger = session_->ledger;
  own_bytes_ =
      std::max(own_bytes_, workspace_at_mark_ - workspace_at_start_ + ledger.workspace_since_mark() + viewed_bytes);
  workspace_at_mark_ = workspace_bytes(ledger);
  ledger.mark_workspace();
}

}  // namespace spillway
