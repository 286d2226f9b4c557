#include "swap/operator_recipe.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <optional>

#include "core/device.h"
#include "swap/pager.h"
#include "swap/session_state.h"
#include "swap/storage_page.h"
#include "swap/window_call.h"

namespace spillway {
namespace {

/// Small storages of the host are kept by value, so that a later write does not change what is replayed.
constexpr size_t kSmallStorageBytes = 4096;

std::optional<TensorForm> form_of(const at::Tensor& tensor, PageId self, std::vector<Recipe::Input>& inputs) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->layout() != c10::kStrided || impl->is_quantized() || tensor.is_nested() || tensor.is_conj() ||
      tensor.is_neg() || tensor._is_zerotensor() || !impl->has_storage())
    return std::nullopt;
  TensorForm form{TensorForm::Self{},       tensor.device(),        impl->dtype(),
                  tensor.sizes().vec(),     tensor.strides().vec(), tensor.storage_offset(),
                  impl->is_wrapped_number()};
  c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
  if (Page* page = page_of(storage)) {
    if (page->id == self) return form;
    form.bytes = page->id;
    for (const Recipe::Input& known : inputs)
      if (known.page == page->id) return known.write_epoch == page->write_epoch ? std::optional(form) : std::nullopt;
    inputs.push_back({page->id, page->write_epoch});
    return form;
  }
  if (storage.nbytes() >= kSmallStorageBytes || !tensor.is_cpu()) return std::nullopt;
  std::vector<char> bytes(storage.nbytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), storage.data(), bytes.size());
  form.bytes = std::move(bytes);
  return form;
}

/// Lists of optional tensors, storages and generators are left to the copies.
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

/// What runs meanwhile is nobody's time.
class Aside {
 public:
  explicit Aside(OperatorClock* clock) : clock_(clock) {
    if (clock_) clock_->begin_aside();
  }
  ~Aside() {
    if (clock_) clock_->end_aside();
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  OperatorClock* const clock_;
};

at::Tensor tensor_of(TensorForm& form, Pager& pager, const at::Tensor& self) {
  void* data = nullptr;
  if (std::holds_alternative<TensorForm::Self>(form.bytes))
    data = self.storage().mutable_data();
  else if (auto* page = std::get_if<PageId>(&form.bytes))
    data = pager.held_page(*page).block->data;
  else
    data = std::get<std::vector<char>>(form.bytes).data();
  const auto item = static_cast<int64_t>(form.dtype.itemsize());
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
  const Session::State* session = Session::State::current();
  Aside aside(session ? session->clock.get() : nullptr);
  at::Tensor self;
  for (Call& call : calls_) run_call(call, pager, self);
  // The bytes leave the tensor, which was only their first owner.
  c10::DataPtr& data = self.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  Block* block = block_behind(data);
  data.release_context();
  data = c10::DataPtr(nullptr, data.device());
  return block;
}

void OperatorRecipe::run_call(Call& call, Pager& pager, at::Tensor& self) {
  OperatorScope scope(call.op.schema().name());
  InputLease lease(pager);
  std::vector<PageUse> uses;
  for (Argument& argument : call.tensors)
    for (TensorForm& form : argument.forms)
      if (auto* page = std::get_if<PageId>(&form.bytes))
        uses.push_back({&pager.held_page(*page), /*write=*/false, kNextUseKept});
  lease.lease(std::move(uses));
  torch::jit::Stack stack = call.stack;
  for (Argument& argument : call.tensors) {
    if (!argument.is_list) {
      stack[argument.position] = tensor_of(argument.forms.front(), pager, self);
      continue;
    }
    c10::List<at::Tensor> list;
    for (TensorForm& form : argument.forms) list.push_back(tensor_of(form, pager, self));
    stack[argument.position] = std::move(list);
  }
  if (call.windows) {  // the same windows, so that the bits are the same
    WindowCall windows(nullptr, call.op, call.keys, stack, {});
    std::vector<at::Tensor> results = call.windows(call.op, stack, {split_bytes_})->run(windows);
    if (call.result >= 0) self = std::move(results[static_cast<size_t>(call.result)]);
    return;
  }
  call.op.redispatchBoxed(call.keys, &stack);
  if (call.result >= 0) self = stack[static_cast<size_t>(call.result)].toTensor();
}

void OperatorRecipes::note_call(int32_t slot, PageId self, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                const torch::jit::Stack& stack, WindowRule windows) {
  auto [at, fresh] = open_.try_emplace(slot, std::make_unique<OperatorRecipe>());
  OperatorRecipe* recipe = at->second.get();
  if (!recipe) return;
  recipe->split_bytes_ = split_bytes_;
  const size_t count = op.schema().arguments().size();
  OperatorRecipe::Call call{op, keys, {}, {}, windows, self == 0 ? 0 : -1};
  bool whole = true;
  auto keep = [&](OperatorRecipe::Argument& argument, const at::Tensor& tensor) {
    auto form = form_of(tensor, self, recipe->inputs_);
    whole = whole && form;
    if (form) argument.forms.push_back(std::move(*form));
  };
  for (size_t a = 0; a < count; ++a) {
    const c10::IValue& value = torch::jit::peek(stack, a, count);
    call.stack.push_back(value);
    const bool single = value.isTensor() && value.toTensor().defined();
    if (single || value.isTensorList()) {
      OperatorRecipe::Argument argument{a, {}, !single};
      if (single)
        keep(argument, value.toTensor());
      else
        for (const at::Tensor& tensor : value.toTensorVector()) keep(argument, tensor);
      call.stack.back() = c10::IValue();
      call.tensors.push_back(std::move(argument));
    } else if (holds_storages(value)) {
      whole = false;
    }
  }
  if (whole)
    recipe->calls_.push_back(std::move(call));
  else
    at->second.reset();
}

void OperatorRecipes::note_result(int32_t slot, PageId self, const c10::OperatorHandle& op,
                                  const torch::jit::Stack& stack) {
  auto at = open_.find(slot);
  if (at == open_.end() || !at->second || at->second->calls_.back().result < 0) return;
  const size_t count = op.schema().returns().size();
  for (size_t r = 0; r < count; ++r) {
    const c10::IValue& value = torch::jit::peek(stack, r, count);
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) continue;
    Page* page = page_of(*value.toTensor().storage().unsafeGetStorageImpl());
    if (!page || page->id != self) continue;
    at->second->calls_.back().result = static_cast<int32_t>(r);
    return;
  }
  at->second.reset();  // the slot is not what was expected
}

std::unique_ptr<Recipe> OperatorRecipes::take(int32_t slot) {
  auto at = open_.find(slot);
  if (at == open_.end()) return nullptr;
  std::unique_ptr<Recipe> recipe = std::move(at->second);
  open_.erase(at);
  return recipe;
}

}  // namespace spillway
