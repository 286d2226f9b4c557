/// The sum, average, maximum or minimum of a vector over all ranks, level by level.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddl/agreement.h"
#include "ddl/arithmetic.h"
#include "ddl/communicator.h"
#include "ddl/element.h"
#include "ddl/plan.h"

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

/// What an Allreduce has done since it was made, on this rank.
struct AllreduceTotals {
  int64_t calls = 0;
  int64_t bytes = 0;                ///< of the vectors, not of the messages
  std::chrono::nanoseconds time{};  ///< within `reduce`, waiting for later ranks included
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

/// Allreduce over one communicator, which must outlive it, by one plan. Keeps programs and work lists, so that repeated
/// calls allocate nothing. Used by one thread at a time.
class Allreduce {
 public:
  /// Every rank gives the same plan over as many ranks, and options; throws BadRequest for a plan of another size.
  Allreduce(Communicator& comm, Plan plan, AllreduceOptions options = {});
  /// Direct on every level of the communicator: sums keep the ranks' order.
  explicit Allreduce(Communicator& comm, AllreduceOptions options = {});

  const Plan& plan() const noexcept { return plan_; }
  const AllreduceTotals& totals() const noexcept { return totals_; }
  /// Of scratch that `reduce` needs on this rank: chunks, whatever the count.
  int64_t scratch_bytes(int64_t count, Element element);

  /// Replaces the output on every rank by the reduction of all ranks' inputs. Any length, the same everywhere; any
  /// alignment of an element. All ranks get the same bits; whether they depend on the length and on where in the vector
  /// an element stands, Plan::keeps_order() tells. `scratch`: scratch_bytes() or more, aligned for 8 bytes. `signature`
  /// is anything else on which the callers must agree (shapes), hashed. Blocking. Cost: that of the plan, and an
  /// agreement of ⌈log2 size⌉ small messages beside its first round.
  /// Throws CommError; the output is then undefined. Throws BadRequest when `scratch` is too small, or input and output
  /// do not have the same size.
  void reduce(const Vector& vector, Reduction reduction, std::span<std::byte> scratch, uint64_t signature = 0);
  /// The same with own scratch, kept for the next call.
  void reduce(const Vector& vector, Reduction reduction, uint64_t signature = 0);
  /// Of float32, in place.
  void reduce(std::span<float> data, Reduction reduction) { reduce(in_place(data, Element::float32), reduction); }

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
  };

  const Program& program(int64_t count, Element element);
  Pipeline pipeline(int64_t count, Element element);
  void run(const Vector& vector, Reduction reduction, std::byte* scratch, Agreement& agreement);
  void open(Chunk& chunk, const Vector& vector, const Pipeline& pipeline, int64_t index, std::byte* scratch);
  void enter(Chunk& chunk, int round, Element element, Reduction reduction);
  void post(Chunk& chunk, const Round& round, Element element);
  void sum(const Chunk& chunk, const Round& round, Element element, Reduction reduction);

  Communicator& comm_;
  const AllreduceOptions options_;
  const Plan plan_;
  const std::string name_;
  AllreduceTotals totals_;
  std::map<std::pair<int64_t, Element>, Program> programs_;
  std::vector<Chunk> chunks_;
  std::vector<Term> terms_;
  std::vector<std::byte> own_scratch_;
};

}  // namespace spillway::ddl
