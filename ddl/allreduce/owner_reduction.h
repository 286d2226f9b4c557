/// Reductions whose parts are formed on their owners, which are chosen ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ddl/allreduce/executor.h"
#include "ddl/allreduce/owner_program.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// A reduction by levels (ddl/allreduce/owner_program.h). It sums every part of a vector at its owner, or hands every
/// part out from there. Used by one thread at a time, for one vector after another.
class OwnerReduction {
 public:
  /// Prepares for vectors of `count` elements, whose parts are disjoint, ascending and the same on every rank.
  /// `segment_bytes` is as in AllreduceOptions. Throws BadRequest for bad parts.
  OwnerReduction(Communicator& comm, int64_t count, Element element, std::vector<OwnedPart> parts,
                 std::vector<int64_t> segment_bytes = {});

  /// Returns the bytes of scratch that reduce() needs on this rank: those of some chunks, for any count. These are some
  /// 10 MiB when no group has more than 128 children.
  int64_t reduce_scratch_bytes();

  /// Replaces this rank's parts of `data` by all ranks' reduction of them, rounded once, divided once for an average.
  /// The bits are those of an Allreduce whose plan keeps the order. The rest of `data` is unchanged. Blocking. Cost:
  /// that of a reduce-scatter by levels, and an agreement beside its first messages. Throws BadRequest for too little
  /// scratch, CommError on every rank when they disagree.
  void reduce(std::span<std::byte> data, Reduction reduction, std::span<std::byte> scratch);
  /// Replaces all other parts by their owners' elements. Blocking; needs no scratch. Throws CommError.
  void gather(std::span<std::byte> data);

 private:
  Call call(Operation operation, uint64_t more) const;
  using Compile = std::function<Program(const std::vector<OwnedPart>& parts)>;
  /// Returns the programs that sum, which are made when they are first asked for. gathering() returns those that hand
  /// out.
  Executor::Programs reducing();
  Executor::Programs gathering();
  Executor::Programs programs(std::vector<Program>& of_chunks, const Compile& compile) const;

  Communicator& comm_;
  const int64_t count_;
  const Element element_;
  const std::vector<OwnedPart> parts_;
  uint64_t signature_;
  Executor executor_;
  std::vector<Program> reduce_;  ///< by chunk
  std::vector<Program> gather_;
};

}  // namespace spillway::ddl
