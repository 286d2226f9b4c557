#include "swap/gate/storage_page.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "core/device/device.h"
#include "core/memory/fork.h"
#include "swap/gate/device_pager.h"

// LibTorch 2.11 arms "reading this data pointer throws my message" through public functions and has no public way to
// disarm it (2.14 has). An explicit instantiation may name private members, which gives this file the flags.
namespace {
template <auto Any, auto Mutable>
struct Expose {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*Any; }
  friend bool& throws_on_mutable_access(c10::StorageImpl& storage) { return storage.*Mutable; }
};
bool& throws_on_access(c10::StorageImpl&);
bool& throws_on_mutable_access(c10::StorageImpl&);
template struct Expose<&c10::StorageImpl::throw_on_immutable_data_ptr_, &c10::StorageImpl::throw_on_mutable_data_ptr_>;
}  // namespace

namespace spillway::swap {
namespace {

constexpr const char* kAbsentMessage =
    "[spillway] this tensor is paged out, so it has no pointer to give. Take Spillway's resident(tensor) (or "
    "resident_read) for as long as you use the pointer. On a thread of your own, C++ opens Session::enter() first, and "
    "operators will page it in. A process that was forked inside a Session cannot bring it back: start workers, such "
    "as "
    "a DataLoader's, before the Session opens, or by 'spawn' or 'forkserver' (multiprocessing_context), or inside "
    "resident(tensor).";

void end_absent_page(void* page);

/// Takes the memory from a storage: its null pointer leads to the page, and reading it throws.
void make_absent(c10::StorageImpl& storage, Page& page) {
  storage.set_data_ptr_noswap({nullptr, &page, &end_absent_page, storage.device()});
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kAbsentMessage);
}

/// The storages that let_compare() lets be compared. The record belongs to the process, because a page ends with its
/// Session, and the next one's page of the same storage is compared as well.
class ComparedStorages {
 public:
  static ComparedStorages& instance() {
    static auto* compared = new ComparedStorages();  // storages outlive static objects too
    return *compared;
  }
  void set(c10::StorageImpl& storage, bool is_compared) {
    const std::lock_guard lock(mutex_);
    if (!is_compared) {
      storages_.erase(&storage);
    } else if (!storages_.contains(&storage)) {
      std::erase_if(storages_, [](const auto& entry) { return entry.second.expired(); });
      storages_.emplace(&storage, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
    }
    count_ = storages_.size();
  }
  /// Costs a load where there are none.
  bool contains(c10::StorageImpl& storage) {
    if (count_ == 0) return false;
    const std::lock_guard lock(mutex_);
    return storages_.contains(&storage);
  }

 private:
  std::mutex mutex_;
  std::atomic<size_t> count_ = 0;
  std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

class StorageOwner final : public PageOwner {
 public:
  StorageOwner(c10::StorageImpl& storage, Pager& pager)
      : may_be_compared_(ComparedStorages::instance().contains(storage)),
        storage_(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)),
        pager_(pager) {}

  std::shared_ptr<void> keep_alive() override {
    auto storage = storage_.lock();
    if (!storage) return nullptr;
    return std::make_shared<c10::intrusive_ptr<c10::StorageImpl>>(std::move(storage));
  }
  void vacate(Page& page) override {
    c10::StorageImpl& storage = *storage_._unsafe_get_target();
    storage._mutable_data_ptr_no_checks().release_context();  // the pager owns the block now
    make_absent(storage, page);
    if (may_be_compared_) refuse_uses_alone(storage);
  }
  void occupy(Block* block) override {
    c10::StorageImpl& storage = *storage_._unsafe_get_target();
    storage._mutable_data_ptr_no_checks().release_context();  // the page lives on
    throws_on_access(storage) = false;
    throws_on_mutable_access(storage) = false;
    storage.set_data_ptr_noswap(find_device(storage.device())->wrap_block(block));
  }
  /// Says whether the storage may be compared with others while it is absent.
  void let_compare(bool let) {
    if (may_be_compared_ == let) return;
    may_be_compared_ = let;
    c10::StorageImpl& storage = *storage_._unsafe_get_target();
    if (storage._mutable_data_ptr_no_checks().get_deleter() != &end_absent_page) return;
    throws_on_access(storage) = true;
    if (let) refuse_uses_alone(storage);
  }
  Pager& pager() { return pager_; }
  const c10::weak_intrusive_ptr<c10::StorageImpl>& storage() const { return storage_; }

 private:
  /// Lets an absent storage's pointer, which is null, be read but not used.
  static void refuse_uses_alone(c10::StorageImpl& storage) {
    storage.set_throw_on_mutable_data_ptr();
    throws_on_access(storage) = false;
  }

  bool may_be_compared_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  Pager& pager_;
};

/// Ends an absent page whose storage died or was given other memory.
void end_absent_page(void* context) {
  auto* page = static_cast<Page*>(context);
  pager_of(*page).on_absent_owner_destroyed(page);
}

/// Gives a storage that LibTorch's default allocator made a counted block with the same bytes.
void adopt(c10::StorageImpl& storage, Device& device) {
  const int64_t bytes = storage.nbytes();
  Block* block = device.memory().allocate(bytes, CategoryScope::current());
  device.copy(block->data, storage.data(), bytes);
  storage.set_data_ptr_noswap(device.wrap_block(block));
  if (storage.allocator()) storage.set_allocator(device.allocator());  // without an allocator it may still be moved
}

/// True when a storage's memory may move. LibTorch marks storages as not resizable when some code may hold their
/// pointer. A storage that it read from a file is not resizable from the start, but no code holds its pointer. Such a
/// storage is known by having no allocator.
bool may_move(const c10::StorageImpl& storage) {
  return storage.resizable() || storage.allocator() == nullptr;
}

/// The storages that are lent, and how often. The record belongs to the process, because loans outlive their Session.
class HeldStorages {
 public:
  static HeldStorages& instance() {
    static auto* held = new HeldStorages();  // loans may outlive static objects too
    return *held;
  }
  void add(const c10::StorageImpl* storage) {
    std::lock_guard lock(mutex_);
    ++times_[storage];
  }
  void remove(const c10::StorageImpl* storage) {
    std::lock_guard lock(mutex_);
    if (--times_[storage] == 0) times_.erase(storage);
  }
  bool contains(const c10::StorageImpl& storage) {
    std::lock_guard lock(mutex_);
    return times_.count(&storage) > 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, int64_t> times_;
};

bool is_plain(const c10::TensorImpl& impl) {
  return impl.layout() == c10::kStrided && !impl.is_quantized() && !impl.key_set().has(c10::DispatchKey::NestedTensor);
}

bool is_host_vector_of_integers(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.is_cpu() && !tensor.is_nested() &&
         tensor.dim() <= 1 && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

bool any_tensor(const c10::IValue& value, c10::function_ref<bool(const at::Tensor&)> is) {
  if (value.isTensor()) return is(value.toTensor());
  if (!value.isList()) return false;
  for (const c10::IValue& element : value.toListRef())
    if (element.isTensor() && is(element.toTensor())) return true;
  return false;
}

}  // namespace

std::shared_ptr<void> hold_in_place(c10::StorageImpl& storage) {
  if (forked_while_paging()) return nullptr;  // nothing moves in a child, and another thread may have had the lock
  HeldStorages::instance().add(&storage);
  auto owner = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage);
  return {&storage, [owner](void*) { HeldStorages::instance().remove(owner.get()); }};
}

void pin_to_device(c10::StorageImpl& storage) {
  const c10::DeviceType place = storage.device_type();
  if (!may_move(storage) || (place != c10::DeviceType::CPU && place != c10::DeviceType::CUDA)) return;
  std::shared_ptr<DevicePager> device = DevicePager::current();
  if (Page* page = device ? device->pager.table().locked([&] { return page_of(storage); }) : nullptr)
    pager_of(*page).unregister_resident(*page);
  storage.set_resizable(false);
  if (!storage.allocator()) storage.set_allocator(c10::GetAllocator(place));  // see may_move()
}

void keep_on_device(const at::Tensor& tensor) {
  std::shared_ptr<DevicePager> device = DevicePager::current();
  const auto turn = DevicePager::take_turn(device.get());
  visit_storages(tensor, pin_to_device);
}

Page* page_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  if (data.get_deleter() == &end_absent_page) return static_cast<Page*>(data.get_context());
  Block* block = block_behind(data);
  return block ? static_cast<Page*>(block->page) : nullptr;
}

Pager& pager_of(const Page& page) {
  return static_cast<StorageOwner*>(page.owner.get())->pager();
}

c10::weak_intrusive_ptr<c10::StorageImpl> storage_of(const Page& page) {
  return static_cast<StorageOwner*>(page.owner.get())->storage();
}

Page* page_or_register(c10::StorageImpl& storage, Page* known, Pager& pager, int64_t min_bytes, UserId user,
                       bool& is_new) {
  is_new = false;
  if (known) {
    TORCH_CHECK(&pager_of(*known) == &pager, "[gate] a tensor of ", known->bytes, " bytes could not come home when an ",
                "earlier Session closed; spillway::resident(tensor) tries again, and lends it");
    if (may_move(storage)) return known;
    pager.unregister_resident(*known);
    return nullptr;
  }
  if (const int64_t bytes = storage.nbytes(); bytes < min_bytes || bytes == 0) return nullptr;
  Device* device = find_device(storage.device());
  if (!device || &device->memory() != &pager.device() || !may_move(storage)) return nullptr;
  if (HeldStorages::instance().contains(storage)) return nullptr;
  // A call may have a storage several times, so it may be a page by now.
  if (Page* page = pager.table().locked([&] { return page_of(storage); })) return page;
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (!data.get()) return nullptr;
  if (!device->find_block(data)) {
    if (!device->is_uncounted(data)) return nullptr;
    adopt(storage, *device);
  }
  is_new = true;
  return pager.add(device->find_block(storage._mutable_data_ptr_no_checks()), storage.nbytes(),
                   std::make_unique<StorageOwner>(storage, pager), user);
}

at::Tensor make_paged_tensor(Device& device, Pager& pager, Block* block, Category category, UserId user,
                             const Strided& shape) {
  const c10::Device place = device.torch_device();
  const size_t bytes = at::detail::computeStorageNbytes(shape.sizes, shape.strides, c10::elementSize(shape.type));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       block ? device.wrap_block(block) : c10::DataPtr(nullptr, place),
                                                       device.allocator(), /*resizable=*/true);
  auto owner = std::make_unique<StorageOwner>(*storage, pager);
  if (block)
    pager.add(block, bytes, std::move(owner), user);
  else
    make_absent(*storage, *pager.add_absent(bytes, category, std::move(owner), user));
  const c10::DispatchKey key = place.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key),
                                                         c10::scalarTypeToTypeMeta(shape.type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
  return tensor;
}

void visit_storages(const at::Tensor& tensor, StorageVisitor visit) {
  if (!tensor.defined()) return;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl->key_set();
  if (impl->has_storage()) visit(*impl->unsafe_storage().unsafeGetStorageImpl());
  if (is_plain(*impl)) return;
  auto visit_all = [&](std::initializer_list<at::Tensor> inner) {
    for (const at::Tensor& t : inner) visit_storages(t, visit);
  };
  if (impl->is_sparse()) {
    auto* sparse = static_cast<at::SparseTensorImpl*>(impl);
    visit_all({sparse->indices(), sparse->values()});
  } else if (impl->is_sparse_compressed()) {
    auto* sparse = static_cast<at::SparseCsrTensorImpl*>(impl);
    visit_all({sparse->compressed_indices(), sparse->plain_indices(), sparse->values()});
  } else if (keys.has(c10::DispatchKey::NestedTensor)) {
    // LibTorch reads these tensors wherever it asks for the shape, without an operator.
    if (auto* nested = dynamic_cast<at::native::NestedTensorImpl*>(impl))
      for (const at::Tensor& t :
           {nested->get_nested_sizes(), nested->get_nested_strides(), nested->get_storage_offsets()})
        visit_storages(t, pin_to_device);
  } else if (impl->is_quantized()) {
    if (auto* q = dynamic_cast<at::PerChannelAffineQuantizer*>(static_cast<at::QTensorImpl*>(impl)->quantizer().get()))
      visit_all({q->scales(), q->zero_points()});
  }
}

void visit_storages(const c10::IValue& value, StorageVisitor visit) {
  if (value.isTensor())
    visit_storages(value.toTensor(), visit);
  else if (value.isList())
    for (const c10::IValue& element : value.toListRef()) visit_storages(element, visit);
  else if (value.isStorage())
    visit(*value.toStorage().unsafeGetStorageImpl());
  else if (value.isTuple())
    for (const c10::IValue& element : value.toTupleRef().elements()) visit_storages(element, visit);
  else if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) {
      visit_storages(entry.key(), visit);
      visit_storages(entry.value(), visit);
    }
}

bool holds_tensors_inside(const c10::IValue& value) {
  return any_tensor(value, [](const at::Tensor& t) { return t.defined() && !is_plain(*t.unsafeGetTensorImpl()); });
}

int64_t least_page_bytes(const c10::IValue& value, int64_t min_page_bytes) {
  constexpr int64_t kMaxVector = 64 << 10;
  return any_tensor(value, is_host_vector_of_integers) ? std::max(min_page_bytes, kMaxVector + 1) : min_page_bytes;
}

void let_compare(c10::StorageImpl& storage, bool let) {
  ComparedStorages::instance().set(storage, let);
  if (Page* page = page_of(storage)) static_cast<StorageOwner*>(page->owner.get())->let_compare(let);
}

bool has_no_purpose(const c10::StorageImpl& storage, const Page* page) {
  const Block* block =
      page ? nullptr : block_behind(const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks());
  if (!page && !block) return false;
  const Category category = page ? page->category : block->category;
  return category == Category::activations || category == Category::workspace || category == Category::other;
}

void give_purpose(c10::StorageImpl& storage, PageTable& table, Category category) {
  Page* page = page_of(storage);
  if (!has_no_purpose(storage, page)) return;
  if (page)
    table.recategorize(*page, category);
  else
    find_device(storage.device())->memory().recategorize(block_behind(storage._mutable_data_ptr_no_checks()), category);
}

void categorize(const at::Tensor& tensor, Category category) {
  if (forked_while_paging()) return;
  std::shared_ptr<DevicePager> device = DevicePager::current();
  const auto turn = DevicePager::take_turn(device.get());
  visit_storages(tensor, [&](c10::StorageImpl& storage) {
    if (Page* page = device ? device->pager.table().locked([&] { return page_of(storage); }) : page_of(storage))
      pager_of(*page).recategorize(*page, category);
    else if (Block* block = block_behind(storage._mutable_data_ptr_no_checks()))
      find_device(storage.device())->memory().recategorize(block, category);
  });
}

}  // namespace spillway::swap
