/// The storages that a thread leaves behind between its Sessions, so that its next Session can page them.
#pragma once
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <unordered_map>
#include <vector>

#include "core/ids.h"

namespace spillway::swap {

class Pager;

/// The counted storages that this thread's operators used last, in its closed Sessions, or made while no Session was
/// open anywhere. A page is found by its storage, but the allocator knows only blocks. So storages are recorded while
/// they can be seen. A thread pages only its own, because another thread's operators may use the others at any time.
/// Holds storages weakly: a dead one costs its descriptor until the record is pruned. Not thread-safe: one per thread.
class ThreadStorages {
 public:
  /// Returns this thread's record; nullptr when the thread is ending.
  static ThreadStorages* mine() noexcept;

  /// Records a storage. Adding it again changes nothing. Amortized cost: one look-up.
  void add(c10::weak_intrusive_ptr<c10::StorageImpl>&& storage);
  /// Returns the storages that live. Must be dropped without the pager's lock, because they may end with the result.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> living() const;
  /// Returns the number of recorded storages, the dead ones that were not pruned yet included.
  size_t size() const noexcept { return storages_.size(); }

 private:
  void prune();

  std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  size_t prune_at_ = 1024;
};

/// Records the storages of the pages that `user` used last, because its Session closes on this thread.
void remember_storages(Pager& pager, UserId user);

/// Makes pages of the storages that this thread left behind, so that they can leave. They are `user`'s. Until an
/// operator uses one, it leaves only where nothing else makes room, because threads without the gate may read it, as
/// workers of a data loader do. Storages below `min_bytes` and those that cannot be paged are passed over. Needs the
/// turn.
void page_left_storages(Pager& pager, int64_t min_bytes, UserId user);

/// Starts, or stops, to record the counted storages that operators make, each in its thread's record. LibTorch's
/// observer of operators sees them on every thread, without the gate. Meanwhile it adds about 0.7 µs to an operator
/// (benchmarks/gate_overhead). Called by one thread at a time.
void record_made_storages(bool record);

}  // namespace spillway::swap
