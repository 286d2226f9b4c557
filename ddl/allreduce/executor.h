/// Carries programs out.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ddl/allreduce/program.h"
#include "ddl/allreduce/reduce_kernels.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/element.h"

namespace spillway::ddl {

struct AllreduceOptions {
  /// The vector goes through the rounds of its plan in chunks of this size, one behind the other, so that every level
  /// has work at any time. Smaller chunks overlap better and stay in cache, larger ones cost fewer messages. 1 KiB to
  /// 1 GiB; the same on every rank.
  int64_t chunk_bytes = int64_t{1} << 20;
  /// By level from 1: a message of more bytes goes as several of this size at once, whose ends need not wait for each
  /// other where a network sends small ones off at once. 1 KiB and more; the same on every rank; empty: never.
  std::vector<int64_t> piece_bytes = {};

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// A vector to be reduced: as many elements as input and output have, which are the same memory, or apart.
struct Vector {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  Element element = Element::float32;
  int64_t count() const { return static_cast<int64_t>(output.size()) / element_bytes(element); }
};

/// Of `values`, in place.
template <class T>
Vector in_place(std::span<T> values, Element element) {
  return {std::as_bytes(values), std::as_writable_bytes(values), element};
}

/// Where the time of an executor's rounds went, on this rank.
struct RoundTimes {
  std::vector<std::chrono::nanoseconds> waited;  ///< by level from 1: for its messages, and for nothing else
  std::chrono::nanoseconds adding{};
};

/// Sends the chunks of a vector through the rounds of their programs, one behind the other. Keeps work lists, so that
/// repeated calls allocate nothing. Used by one thread at a time.
class Executor {
 public:
  /// What this rank does with some elements of a vector, counted from their first: for all of a vector as many rounds,
  /// as many of them collecting. Lives until the vector is done.
  using Programs = std::function<const Program&(Range elements)>;

  /// Throws BadRequest as AllreduceOptions::validate.
  Executor(Communicator& comm, AllreduceOptions options);

  const AllreduceOptions& options() const noexcept { return options_; }
  /// Of all vectors so far.
  const RoundTimes& times() const noexcept { return times_; }
  /// Elements of a chunk of a vector of so many.
  int64_t chunk_elements(int64_t count, Element element) const;
  /// Of scratch for such a vector: chunks, whatever the count. `apart`: partial results never lie in the output, whose
  /// elements then are their own until they are finished.
  int64_t scratch_bytes(int64_t count, Element element, bool apart, const Programs& programs) const;
  /// The first messages leave before `agreement` is concluded, and are looked at afterwards. Blocking. Throws
  /// CommError.
  void run(const Vector& vector, Reduction reduction, std::byte* scratch, bool apart, const Programs& programs,
           Agreement& agreement);

 private:
  /// A part of the vector on its way through the rounds.
  struct Chunk {
    const Program* program = nullptr;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::byte* partial = nullptr;
    std::byte* scratch = nullptr;
    std::vector<Request> requests;  ///< of the round it is in
  };
  /// How chunks follow each other, and what each needs.
  struct Pipeline {
    int64_t chunk_elements = 0;
    int64_t chunks = 0;
    int rounds = 0;
    int stride = 1;             ///< rounds between two chunks
    int lanes = 1;              ///< chunks that have scratch at once
    int64_t partial_bytes = 0;  ///< at the front of a lane
    int64_t lane_bytes = 0;
    Range chunk(int64_t index, int64_t count) const;
  };

  Pipeline pipeline(int64_t count, Element element, bool apart, const Programs& programs) const;
  void open(Chunk& chunk, const Vector& vector, const Pipeline& pipeline, int64_t index, std::byte* scratch);
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
