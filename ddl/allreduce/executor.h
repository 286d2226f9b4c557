/// The executor that carries out programs.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ddl/allreduce/combine.h"
#include "ddl/allreduce/plan.h"
#include "ddl/allreduce/program.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/element.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// An executor that sends the chunks of a vector through the rounds of their programs, one behind the other. It keeps
/// work lists, so that repeated calls allocate nothing. Used by one thread at a time.
class Executor {
 public:
  /// A function that returns this rank's program for some elements of a vector, counted from their first. All programs
  /// of a vector have as many rounds, and as many of them collecting. A program lives until the vector is done.
  using Programs = std::function<const Program&(Range elements)>;

  /// Throws BadRequest as AllreduceOptions::validate does.
  Executor(Communicator& comm, AllreduceOptions options);

  const AllreduceOptions& options() const noexcept { return options_; }
  /// Returns the times of all vectors so far.
  const RoundTimes& times() const noexcept { return times_; }
  /// Returns the elements of a chunk of a vector of `count` elements.
  int64_t chunk_elements(int64_t count, Element element) const;
  /// Returns the bytes of scratch for such a vector: those of some chunks, for any count. `apart`: partial results
  /// never lie in the output, so the output keeps its elements until they are finished.
  int64_t scratch_bytes(int64_t count, Element element, bool apart, const Programs& programs) const;
  /// Runs the programs over a vector. The first messages leave before `agreement` is concluded, and are looked at
  /// afterwards. Blocking. Throws CommError.
  void run(const ReduceBuffers& vector, Reduction reduction, std::byte* scratch, bool apart, const Programs& programs,
           Agreement& agreement);

 private:
  /// A part of the vector on its way through the rounds.
  struct Chunk {
    const Program* program = nullptr;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::byte* partial = nullptr;
    std::byte* scratch = nullptr;
    std::vector<Request> requests;  ///< requests of the round that it is in
  };
  /// The order in which chunks follow each other, and the memory that each needs.
  struct Pipeline {
    int64_t chunk_elements = 0;
    int64_t chunks = 0;
    int rounds = 0;
    int stride = 1;             ///< rounds between two chunks
    int lanes = 1;              ///< chunks that have scratch at once
    int64_t partial_bytes = 0;  ///< bytes of partial results at the front of a lane
    int64_t lane_bytes = 0;
    Range chunk(int64_t index, int64_t count) const;
  };

  Pipeline pipeline(int64_t count, Element element, bool apart, const Programs& programs) const;
  void open(Chunk& chunk, const ReduceBuffers& vector, const Pipeline& pipeline, int64_t index, std::byte* scratch);
  void enter(Chunk& chunk, int round, Element element, Reduction reduction);
  void finish(const Chunk& chunk, Element element, Reduction reduction);
  void post(Chunk& chunk, const Round& round, Element element);
  void sum(const Chunk& chunk, const Round& round, Element element, Reduction reduction);

  Communicator& comm_;
  const AllreduceOptions options_;
  RoundTimes times_;
  std::vector<Chunk> chunks_;
  std::vector<Term> terms_;
};

}  // namespace spillway::ddl
