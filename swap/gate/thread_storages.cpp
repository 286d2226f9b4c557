#include "swap/gate/thread_storages.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/device/device.h"
#include "swap/gate/autograd_purposes.h"
#include "swap/gate/storage_page.h"

namespace spillway::swap {
namespace {

/// Notes the end of a thread's record, because tensors may be made even later, by destructors.
struct RecordOfThread {
  ThreadStorages storages;
  inline static thread_local bool ended = false;
  ~RecordOfThread() { ended = true; }
};

/// Records the storage of a result that the next Session may page. Tensors that hold tensors inside are left out:
/// operators made those, too.
void record_made(const at::Tensor& tensor, ThreadStorages& storages) {
  if (!tensor.defined() || !tensor.has_storage() || holds_tensors_inside(tensor)) return;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (!block_behind(storage._mutable_data_ptr_no_checks())) return;  // first: traced tensors' sizes may be symbols
  if (static_cast<int64_t>(storage.nbytes()) < least_page_bytes(tensor, /*min_page_bytes=*/1)) return;
  if (BucketScope::is_open()) let_compare(storage, true);  // no page yet, so no lock is needed
  storages.add(c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)));
}

void record_results(const at::RecordFunction& call, at::ObserverContext*) {
  ThreadStorages* storages = ThreadStorages::mine();
  if (!storages) return;
  for (const c10::IValue& result : call.outputs()) {
    if (result.isTensor()) record_made(result.toTensor(), *storages);
    if (!result.isTensorList()) continue;
    for (const at::Tensor& tensor : result.toTensorVector()) record_made(tensor, *storages);
  }
}

}  // namespace

ThreadStorages* ThreadStorages::mine() noexcept {
  if (RecordOfThread::ended) return nullptr;
  thread_local RecordOfThread record;
  return &record.storages;
}

void ThreadStorages::add(c10::weak_intrusive_ptr<c10::StorageImpl>&& storage) {
  if (storages_.size() >= prune_at_) prune();
  c10::StorageImpl* key = storage._unsafe_get_target();
  storages_.try_emplace(key, std::move(storage));
}

std::vector<c10::intrusive_ptr<c10::StorageImpl>> ThreadStorages::living() const {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> living;
  for (const auto& [key, weak] : storages_)
    if (auto storage = weak.lock()) living.push_back(std::move(storage));
  return living;
}

void ThreadStorages::prune() {
  std::erase_if(storages_, [](const auto& entry) { return entry.second.expired(); });
  prune_at_ = std::max<size_t>(1024, 2 * storages_.size());
}

void remember_storages(Pager& pager, UserId user) {
  ThreadStorages* storages = ThreadStorages::mine();
  if (!storages) return;
  pager.table().locked([&] {
    for (const auto& [id, page] : pager.table().pages())
      if (page->user == user && !page->is_orphan()) storages->add(storage_of(*page));
  });
}

void page_left_storages(Pager& pager, int64_t min_bytes, UserId user) {
  const ThreadStorages* storages = ThreadStorages::mine();
  if (!storages) return;
  for (const auto& storage : storages->living()) {
    // Absent storages have no block: they are pages, of this pager or of one that could not bring them back.
    const bool loose = pager.table().locked(
        [&] { return block_behind(storage->_mutable_data_ptr_no_checks()) && !page_of(*storage); });
    bool is_new = false;
    if (!loose) continue;
    Page* page = page_or_register(*storage, nullptr, pager, min_bytes, user, is_new);
    if (is_new) pager.table().locked([&] { page->priority = EvictionPriority::last_resort; });
  }
}

void record_made_storages(bool record) {
  static std::optional<at::CallbackHandle> handle;
  if (record == handle.has_value()) return;
  if (record) {
    auto callback = at::RecordFunctionCallback(
        [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }, &record_results);
    handle = at::addGlobalCallback(callback.needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  } else {
    at::removeCallback(*handle);
    handle.reset();
  }
}

}  // namespace spillway::swap
