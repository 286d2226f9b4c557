/// Pages of LibTorch's storages: how a StorageImpl loses its bytes in place, and gets them back.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>

#include "core/device/device.h"
#include "swap/pager/pager.h"

namespace spillway {

/// The page of a storage, resident or absent; nullptr when none is registered. Cost: two loads. Under the pager's lock
/// (Pager::locked) when another thread may page the storage out or in meanwhile.
Page* page_of(const c10::StorageImpl& storage);

/// The pager that a page of a storage belongs to.
Pager& pager_of(const Page& page);

/// The page of a storage, registered now if need be. A storage whose memory came from LibTorch's own allocator (it
/// was born before the Session) is moved into counted memory first. nullptr for storages that cannot be paged: smaller
/// than `min_bytes`, not resizable (external or shared memory), copy-on-write, held in place, not on the pager's
/// device; a page that LibTorch has marked as not resizable since comes home for good. `is_new` tells a registration,
/// for `user`. One caller at a time. Throws OutOfBudget when a moved storage does not fit, or one cannot come home.
Page* page_or_register(c10::StorageImpl& storage, Pager& pager, int64_t min_bytes, UserId user, bool& is_new);

/// Holds a storage's memory where it is while the result lives, if it is no page: it becomes none in this Session or a
/// later one. Pages are held by leases. Thread-safe.
std::shared_ptr<void> hold_in_place(c10::StorageImpl& storage);

/// The storage stays on the device for good. Throws OutOfBudget when it is away and cannot come.
void pin_to_device(c10::StorageImpl& storage);

struct Strided {
  at::IntArrayRef sizes, strides;
  at::ScalarType type;
};
/// A tensor on the pager's device, of uninitialised elements, whose page is `block`, or that is absent when `block` is
/// null: its page's host copy is then filled with Pager::write_window. Throws OutOfBudget when the host is full.
at::Tensor make_paged_tensor(Device& device, Pager& pager, Block* block, Category category, UserId user,
                             const Strided& shape);

using StorageVisitor = c10::function_ref<void(c10::StorageImpl&)>;

/// Visits every storage that a kernel given `value` can touch: of tensors, lists, optionals, tuples, dictionaries,
/// Storage values, and of the tensors inside sparse, compressed sparse and per-channel quantized ones. In a fixed
/// order. The tensors that hold a nested tensor's shape are made to stay on the device instead.
void visit_storages(const c10::IValue& value, StorageVisitor visit);
void visit_storages(const at::Tensor& tensor, StorageVisitor visit);

/// Whether a tensor among these (or in a list of them) is more than a strided view of one storage: then even an
/// operator that only makes one like it may read the tensors inside.
bool holds_tensors_inside(const c10::IValue& value);

/// The least size at which storages in `value` become pages. LibTorch's composite operators, which run above the gate,
/// read lengths, batch sizes and indices to split at through a pointer that they keep while their parts run. So
/// integers of at most one dimension (elements of vectors are read, too) and 64 KiB on the host are no pages.
int64_t least_page_bytes(const c10::IValue& value, int64_t min_page_bytes);

/// Counts the tensor's storage under `category` from now on. Does nothing for storages that are not counted.
void categorize(const at::Tensor& tensor, Category category);

}  // namespace spillway
