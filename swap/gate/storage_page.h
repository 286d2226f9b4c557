/// Pages of LibTorch's storages: how a StorageImpl loses its bytes in place, and gets them back.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>

#include "core/device/device.h"
#include "swap/pager/pager.h"

namespace spillway::swap {

/// Returns the page of a storage, resident or absent; nullptr when none is registered. Cost: two loads. Must be called
/// under the pager's lock (PageTable::locked) when another thread may page the storage out or in meanwhile.
Page* page_of(const c10::StorageImpl& storage);

/// Returns the pager that a page of a storage belongs to.
Pager& pager_of(const Page& page);

/// Returns the storage of a page that is no orphan. Must be called under the pager's lock.
c10::weak_intrusive_ptr<c10::StorageImpl> storage_of(const Page& page);

/// Returns the page of a storage, registered now if need be. `known` is what page_of() returned for it. A storage whose
/// memory came from LibTorch's own allocator (it was born before the Session) is moved into counted memory first.
/// Returns nullptr for storages that cannot be paged: smaller than `min_bytes`, not resizable (external or shared
/// memory), copy-on-write, held in place, or not on the pager's device. A page that LibTorch has marked as not
/// resizable since then comes back to the device for good. `is_new` tells a registration, which is for `user`. One
/// caller at a time. Throws OutOfBudget when a moved storage does not fit, or when a page cannot come back.
Page* page_or_register(c10::StorageImpl& storage, Page* known, Pager& pager, int64_t min_bytes, UserId user,
                       bool& is_new);

/// Holds a storage's memory where it is while the result lives, if it is no page. The storage then becomes no page in
/// this Session or a later one. Pages are held by leases. Thread-safe.
std::shared_ptr<void> hold_in_place(c10::StorageImpl& storage);

/// Keeps the storage's memory where it is for good, in this Session and in later ones, because other code holds its
/// address. Brings it back first. Needs the turn inside a Session. Throws OutOfBudget when it cannot come back.
void pin_to_device(c10::StorageImpl& storage);
/// Pins every storage of a tensor to its device, in a turn of its own. Thread-safe.
void keep_on_device(const at::Tensor& tensor);

struct Strided {
  at::IntArrayRef sizes, strides;
  at::ScalarType type;
};
/// Makes a tensor on the pager's device, of uninitialized elements, whose page is `block`. When `block` is null, the
/// tensor is absent, and its page's host copy is then filled with WindowAccess::write_window. Throws OutOfBudget when
/// the host is full.
at::Tensor make_paged_tensor(Device& device, Pager& pager, Block* block, Category category, UserId user,
                             const Strided& shape);

using StorageVisitor = c10::function_ref<void(c10::StorageImpl&)>;

/// Visits every storage that a kernel given `value` can touch, in a fixed order. These are storages of tensors, lists,
/// optionals, tuples, dictionaries and Storage values. The tensors inside sparse, compressed sparse and per-channel
/// quantized tensors count, too. The tensors that hold a nested tensor's shape are made to stay on the device instead.
void visit_storages(const c10::IValue& value, StorageVisitor visit);
void visit_storages(const at::Tensor& tensor, StorageVisitor visit);

/// True when a tensor among these (or in a list of them) is more than a strided view of one storage. Then even an
/// operator that only makes a tensor like it may read the tensors inside.
bool holds_tensors_inside(const c10::IValue& value);

/// Returns the minimum size at which storages in `value` become pages. LibTorch's composite operators, which run above
/// the gate, read lengths, batch sizes and indices to split at through a pointer. They keep that pointer while their
/// parts run. So integers on the host of at most one dimension and 64 KiB are no pages. One dimension counts because
/// elements of vectors are read, too.
int64_t least_page_bytes(const c10::IValue& value, int64_t min_page_bytes);

/// Says whether a page's storage may be compared with other storages while it is absent. LibTorch's is_alias_of() reads
/// both pointers, and by itself an absent storage refuses that. One that may be compared refuses what could write only,
/// and shows a null pointer to what reads. Later pages of the storage, in other Sessions, follow it. Must be called
/// under the pager's lock.
void let_compare(c10::StorageImpl& storage, bool let);

/// True for storages that are counted under no purpose of their own: as activations, workspace or other. `page` is what
/// page_of() returned.
bool has_no_purpose(const c10::StorageImpl& storage, const Page* page);

/// Counts a storage under `category` where has_no_purpose(). Must be called under the pager's lock.
void give_purpose(c10::StorageImpl& storage, PageTable& table, Category category);

/// Counts the tensor's storage under `category` from now on. Does nothing for storages that are not counted.
void categorize(const at::Tensor& tensor, Category category);

}  // namespace spillway::swap
