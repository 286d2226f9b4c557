#include "swap/gate/operator_recipe.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <optional>

#include "core/device/device.h"
#include "swap/gate/session_scope.h"
#include "swap/gate/storage_page.h"
#include "swap/pager/pager.h"
#include "swap/windows/window_call.h"

namespace spillway::swap {
namespace {

/// The size below which a storage of the host is kept by value, so that a later write does not change the replay.
constexpr size_t kSmallStorageBytes = 4096;

/// A storage's page as a call finds it.
struct Seen {
  PageId page = 0;
  uint64_t write_epoch = 0;
  int32_t writers = 0;
};

std::optional<Seen> see(Pager& pager, const c10::StorageImpl& storage) {
  return pager.table().locked([&]() -> std::optional<Seen> {
    const Page* page = page_of(storage);
    if (!page) return std::nullopt;
    return Seen{page->id, page->write_epoch, page->writers};
  });
}

/// Reads the tensors of one call. read() returns false when a tensor cannot be had again as it is.
class CallReader {
 public:
  CallReader(Pager& pager, PageId self, std::vector<ReplayRecipe::Input>& inputs)
      : pager_(pager), self_(self), inputs_(inputs) {}

  bool read(const at::Tensor& tensor, bool written, std::vector<TensorSpec>& forms) {
    std::optional<TensorSpec> form = form_of(tensor);
    if (!form || (written && !std::holds_alternative<TensorSpec::Self>(form->bytes))) return false;
    own_writes_ += written;
    forms.push_back(std::move(*form));
    return true;
  }
  /// True when no call but the recipe's wrote the tensor that is being made, and no other may be writing it.
  bool is_sole_writer(const OperatorRecipe& recipe, bool in_windows) const {
    return found_.page != 0 && found_.write_epoch == recipe.write_epoch() &&
           found_.writers == (in_windows ? 0 : own_writes_);
  }

 private:
  std::optional<TensorSpec> form_of(const at::Tensor& tensor);
  bool add_input(const Seen& page);

  Pager& pager_;
  const PageId self_;
  std::vector<ReplayRecipe::Input>& inputs_;
  Seen found_;  // the tensor that is being made; page 0 while it is no argument
  int32_t own_writes_ = 0;
};

std::optional<TensorSpec> CallReader::form_of(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->layout() != c10::kStrided || impl->is_quantized() || tensor.is_nested() || tensor.is_conj() ||
      tensor.is_neg() || tensor._is_zerotensor() || !impl->has_storage())
    return std::nullopt;
  TensorSpec form{TensorSpec::Self{},       tensor.device(),        impl->dtype(),
                  tensor.sizes().vec(),     tensor.strides().vec(), tensor.storage_offset(),
                  impl->is_wrapped_number()};
  c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
  if (const std::optional<Seen> page = see(pager_, storage)) {
    if (page->page == self_) {
      found_ = *page;
      return form;
    }
    form.bytes = page->page;
    return add_input(*page) ? std::optional(form) : std::nullopt;
  }
  if (storage.nbytes() >= kSmallStorageBytes || !tensor.is_cpu()) return std::nullopt;
  std::vector<char> bytes(storage.nbytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), storage.data(), bytes.size());
  form.bytes = std::move(bytes);
  return form;
}

/// Adds a page to the inputs. Returns false when earlier calls read other bytes of it, or when its bytes may change at
/// any time.
bool CallReader::add_input(const Seen& page) {
  if (page.writers > 0) return false;
  for (const ReplayRecipe::Input& known : inputs_)
    if (known.page == page.page) return known.write_epoch == page.write_epoch;
  inputs_.push_back({page.page, page.write_epoch});
  return true;
}

/// True for lists of optional tensors, storages and generators: recipes do not keep these, so their results are copied.
bool holds_storages(const c10::IValue& value) {
  if (!value.isList()) return value.isStorage() || value.isGenerator();
  for (const c10::IValue& element : value.toListRef())
    if (element.isTensor()) return true;
  return false;
}

/// Keeps inputs on the device while a call reads them.
class InputLease {
 public:
  explicit InputLease(Pager& pager) : pager_(pager) {}
  InputLease(const InputLease&) = delete;
  InputLease& operator=(const InputLease&) = delete;
  ~InputLease() { pager_.unlease(uses_); }
  void lease(std::vector<PageUse> uses) {
    pager_.lease(uses);
    uses_ = std::move(uses);
  }

 private:
  Pager& pager_;
  std::vector<PageUse> uses_;
};

/// Pauses the clock while it lives, so that no operator is charged for that time.
class PausedClock {
 public:
  explicit PausedClock(ComputeClock* clock) : clock_(clock) {
    if (clock_) clock_->pause();
  }
  ~PausedClock() {
    if (clock_) clock_->resume();
  }
  PausedClock(const PausedClock&) = delete;
  PausedClock& operator=(const PausedClock&) = delete;

 private:
  ComputeClock* const clock_;
};

/// Sets the number of threads while it lives, because kernels divide work by that number and sums may depend on the
/// division.
class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(at::get_num_threads()) { set(count); }
  ~ThreadCount() { set(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  static void set(int count) {
    if (at::get_num_threads() != count) at::set_num_threads(count);
  }
  const int before_;
};

at::Tensor tensor_of(TensorSpec& form, Pager& pager, const at::Tensor& self) {
  void* data = nullptr;
  if (std::holds_alternative<TensorSpec::Self>(form.bytes))
    data = self.storage().mutable_data();
  else if (auto* page = std::get_if<PageId>(&form.bytes))
    data = pager.replayer().held_page(*page).block->data;
  else
    data = std::get<std::vector<char>>(form.bytes).data();
  const int64_t item = form.dtype.itemsize();
  at::Tensor tensor = at::for_blob(static_cast<char*>(data) + form.offset * item, form.sizes)
                          .strides(form.strides)
                          .options(at::TensorOptions(form.dtype).device(form.device))
                          .target_device(form.device)
                          .make_tensor();
  if (form.wrapped_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace

Block* OperatorRecipe::run(Pager& pager) {
  c10::impl::ExcludeDispatchKeyGuard gate(kGateKey);
  c10::impl::ExcludeDispatchKeyGuard autocast(c10::autocast_dispatch_keyset);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
  CategoryScope category(Category::workspace);
  const SessionScope* scope = SessionScope::current();
  PausedClock aside(scope ? scope->clock : nullptr);
  at::Tensor self;
  for (Call& call : calls_) run_call(call, pager, self);
  // Takes the bytes from the tensor, which was only their first owner.
  c10::DataPtr& data = self.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  Block* block = block_behind(data);
  data.release_context();
  data = c10::DataPtr(nullptr, data.device());
  return block;
}

void OperatorRecipe::run_call(Call& call, Pager& pager, at::Tensor& self) {
  OperatorScope scope(call.op.schema().name());
  const ThreadCount threads(call.threads);
  InputLease lease(pager);
  std::vector<PageUse> uses;
  for (Argument& argument : call.tensors)
    for (TensorSpec& form : argument.forms)
      if (auto* page = std::get_if<PageId>(&form.bytes))
        uses.push_back({&pager.replayer().held_page(*page), /*write=*/false, kNextUseKept});
  lease.lease(std::move(uses));
  torch::jit::Stack stack = call.stack;
  for (Argument& argument : call.tensors) {
    if (!argument.is_list) {
      stack[argument.position] = tensor_of(argument.forms.front(), pager, self);
      continue;
    }
    c10::List<at::Tensor> list;
    for (TensorSpec& form : argument.forms) list.push_back(tensor_of(form, pager, self));
    stack[argument.position] = std::move(list);
  }
  if (call.windows) {  // split as in the first run, so that the bits are equal
    WindowCall windows(call.op, call.keys, stack);
    std::vector<at::Tensor> results = call.windows(call.op, stack, {split_bytes_})->run(windows);
    if (call.result >= 0) self = std::move(results[call.result]);
    return;
  }
  call.op.redispatchBoxed(call.keys, &stack);
  if (call.result >= 0) self = stack[call.result].toTensor();
}

void OperatorRecipes::record_call(int32_t slot, PageId self, const OperatorTraits& traits,
                                  const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  const torch::jit::Stack& stack, WindowRule windows) {
  auto [at, fresh] = open_.try_emplace(slot, std::make_unique<OperatorRecipe>());
  OperatorRecipe* recipe = at->second.get();
  if (!recipe) return;
  recipe->split_bytes_ = split_bytes_;
  const bool makes_it = self == 0;  // only the first call makes it
  if (makes_it != recipe->calls_.empty() || !is_replayable(traits, op, stack) ||
      !add_call(*recipe, self, traits, {op, keys, {}, {}, windows, makes_it ? 0 : -1, at::get_num_threads()}, stack))
    at->second.reset();
}

bool OperatorRecipes::add_call(OperatorRecipe& recipe, PageId self, const OperatorTraits& traits,
                               OperatorRecipe::Call call, const torch::jit::Stack& stack) {
  CallReader reader(pager_, self, recipe.inputs_);
  const size_t count = traits.writes.size();
  for (size_t a = 0; a < count; ++a) {
    const c10::IValue& value = torch::jit::peek(stack, a, count);
    call.stack.push_back(value);
    const bool single = value.isTensor() && value.toTensor().defined();
    if (!single && !value.isTensorList()) {
      if (holds_storages(value)) return false;
      continue;
    }
    OperatorRecipe::Argument argument{a, {}, !single};
    for (const at::Tensor& tensor : single ? std::vector{value.toTensor()} : value.toTensorVector())
      if (!reader.read(tensor, traits.writes[a], argument.forms)) return false;
    call.stack.back() = c10::IValue();
    call.tensors.push_back(std::move(argument));
  }
  if (self != 0 && !reader.is_sole_writer(recipe, call.windows != nullptr)) return false;
  recipe.calls_.push_back(std::move(call));
  return true;
}

void OperatorRecipes::record_result(int32_t slot, PageId self, const c10::OperatorHandle& op,
                                    const torch::jit::Stack& stack) {
  auto at = open_.find(slot);
  if (at == open_.end() || !at->second) return;
  OperatorRecipe& recipe = *at->second;
  const size_t count = op.schema().returns().size();
  for (size_t r = 0; r < count; ++r) {
    const c10::IValue& value = torch::jit::peek(stack, r, count);
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) continue;
    const auto page = see(pager_, *value.toTensor().storage().unsafeGetStorageImpl());
    if (!page || page->page != self) continue;
    if (recipe.calls_.back().result >= 0) recipe.calls_.back().result = r;
    recipe.write_epoch_ = page->write_epoch;
    return;
  }
  at->second.reset();  // no result is the page that was expected
}

std::unique_ptr<ReplayRecipe> OperatorRecipes::take(int32_t slot) {
  auto at = open_.find(slot);
  if (at == open_.end()) return nullptr;
  std::unique_ptr<ReplayRecipe> recipe = std::move(at->second);
  open_.erase(at);
  return recipe;
}

}  // namespace spillway::swap
