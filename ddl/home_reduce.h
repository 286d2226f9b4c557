/// Reductions whose parts are formed on chosen ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddl/communicator.h"
#include "ddl/element.h"

namespace spillway::ddl {

/// Elements of a vector, and the rank that sums them.
struct HomePart {
  Range range;
  int home = 0;
};

/// Elements 0 … count in `size` parts of (nearly) equal length: part r is [count·r/size, count·(r+1)/size), home r.
std::vector<HomePart> equal_parts(int64_t count, int size);

/// Bytes of scratch that the one below needs on this rank: 1 MiB or so for equal parts; for others 8 MiB at most, or
/// (size−1)·64 KiB above 128 ranks.
int64_t home_scratch_bytes(const Communicator& comm, int64_t count, Element element, std::span<const HomePart> parts);

/// Reduces `data` (as many elements of `element` on every rank) part by part: every rank sends each part to its home,
/// which combines all ranks' versions, level by level in the order of ranks, divides once for an average, and rounds
/// once: the bits of an Allreduce whose plan keeps the order. Afterwards a rank
/// holds the results of the parts it is home to; the rest of its `data` is unchanged. `parts` are disjoint, ascending
/// and the same on every rank. Blocking, chunk by chunk. Cost per rank: its own parts are received size−1 times, the
/// others sent. Throws BadRequest for bad parts or too little scratch, CommError on every rank when they disagree.
void reduce_at_homes(Communicator& comm, std::span<std::byte> data, Element element, std::span<const HomePart> parts,
                     Reduction reduction, std::span<std::byte> scratch);

/// The parts of an allreduce that takes no account of levels: every MiB in equal parts, one for each rank.
std::vector<HomePart> flat_parts(int64_t count, int size, Element element);

/// One of the reductions above while its caller does something else: the vector travels as a whole, no agreement is
/// sought, and other collectives may run on the communicator meanwhile, from the same thread. Reductions that are under
/// way together are begun in the same order on every rank, and gather() is called in that order. The bits are those of
/// the blocking ones. Scratch: (size−1) times this rank's own parts.
class PendingReduction {
 public:
  /// Posts this rank's parts of `data` to their homes; `data`, `parts` and `scratch` must outlive the reduction.
  PendingReduction(Communicator& comm, std::span<std::byte> data, Element element, std::span<const HomePart> parts,
                   std::span<std::byte> scratch);
  static int64_t scratch_bytes(const Communicator& comm, Element element, std::span<const HomePart> parts);
  /// Whether every message of the stage has come and gone. Never blocks. Throws CommError.
  bool arrived();
  /// Blocks until then.
  void wait();
  /// After the first stage: adds up this rank's parts and, with `everyone`, posts the second stage.
  void gather(bool everyone, Reduction reduction);

 private:
  Communicator& comm_;
  const std::span<std::byte> data_;
  const Element element_;
  const std::span<const HomePart> parts_;
  const std::span<std::byte> scratch_;
  std::vector<Request> requests_;
  bool gathering_ = false;
};

}  // namespace spillway::ddl
