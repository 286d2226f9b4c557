/// Reductions whose parts are formed on chosen ranks.
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

/// Sums every part of a vector at its home, or hands every part out from there, by levels
/// (ddl/allreduce/owner_program.h). Used by one thread at a time, for one vector after another.
class HomeReduction {
 public:
  /// For vectors of `count` elements, whose parts are disjoint, ascending and the same on every rank; `piece_bytes` as
  /// in AllreduceOptions. Throws BadRequest for bad parts.
  HomeReduction(Communicator& comm, int64_t count, Element element, std::vector<HomePart> parts,
                std::vector<int64_t> piece_bytes = {});

  /// Bytes of scratch that reduce() needs on this rank: chunks, whatever the count; some 10 MiB where no group has more
  /// than 128 children.
  int64_t reduce_scratch_bytes();

  /// Replaces this rank's parts of `data` by all ranks' reduction of them, rounded once, divided once for an average:
  /// the bits of an Allreduce whose plan keeps the order. The rest of `data` is unchanged. Blocking. Cost: that of a
  /// reduce-scatter by levels, and an agreement beside its first messages. Throws BadRequest for too little scratch,
  /// CommError on every rank when they disagree.
  void reduce(std::span<std::byte> data, Reduction reduction, std::span<std::byte> scratch);
  /// Replaces all other parts by what their homes have. Blocking; needs no scratch. Throws CommError.
  void gather(std::span<std::byte> data);

 private:
  Call call(Operation operation, uint64_t more) const;
  using Compile = std::function<Program(const std::vector<HomePart>& parts)>;
  /// Made when they are first asked for.
  Executor::Programs reducing();
  Executor::Programs gathering();
  Executor::Programs programs(std::vector<Program>& of_chunks, const Compile& compile) const;

  Communicator& comm_;
  const int64_t count_;
  const Element element_;
  const std::vector<HomePart> parts_;
  uint64_t signature_;
  Executor executor_;
  std::vector<Program> reduce_;  ///< by chunk
  std::vector<Program> gather_;
};

}  // namespace spillway::ddl
