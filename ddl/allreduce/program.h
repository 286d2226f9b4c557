/// The program of one rank in a reduction, round by round: data, which an executor carries out and a cost model adds
/// up.
#pragma once
#include <cstdint>
#include <vector>

#include "core/bytes.h"
#include "ddl/comm/element.h"

namespace spillway::ddl {

/// The buffer that elements are in. For types that are their own partial type, partial results lie in the output's
/// place.
enum class BufferKind : uint8_t {
  input,    ///< this rank's contribution
  partial,  ///< partial results of some of the ranks' inputs
  output,   ///< results
  scratch   ///< elements that another rank has sent, until the round's sums are taken
};

/// One message. Both ends know it; empty ones are left out.
struct Transfer {
  int peer = -1;
  BufferKind place = BufferKind::input;
  Range range;           ///< range of the vector's elements
  int64_t offset = 0;    ///< in scratch: bytes from its start
  bool partial = false;  ///< true when it travels in the type of partial results
};

/// A combination of elements: partial[range] = one rank's elements after another's, in this order.
struct Combination {
  /// The elements of one rank, and their place.
  struct Source {
    BufferKind place = BufferKind::input;  ///< input, partial or scratch
    int64_t offset = 0;                    ///< in scratch: bytes from its start
    bool partial = false;
  };
  Range range;
  std::vector<Source> sources;
};

/// Messages that go together, and the sums that are taken when all have come.
struct Round {
  int level = 0;        ///< level of Levels, from 1
  bool gather = false;  ///< true when results are handed out; else contributions are collected
  std::vector<Transfer> sends{};
  std::vector<Transfer> receives{};
  std::vector<Combination> sums{};
};

/// The program of one rank. Every rank's program for a plan has as many rounds as the others'. Messages between two
/// ranks stand in the same order in both programs. Contributions are collected first; then `finished` is rounded from
/// partial to output; then results are handed out.
struct Program {
  int levels = 0;  ///< number of levels
  std::vector<Round> rounds{};
  int collecting_rounds = 0;      ///< number of collecting rounds, which come first
  std::vector<Range> finished{};  ///< ranges of which this rank has the sums
  int64_t scratch_bytes = 0;      ///< maximum that a round needs
};

/// Returns the next multiple of 64 that is not below `bytes`, because parts of scratch begin on cache lines.
constexpr int64_t align_scratch(int64_t bytes) {
  return round_up(bytes, 64);
}

/// Returns the maximum bytes that a round's incoming messages need.
int64_t scratch_bytes_of(const Program& program, Element element);

}  // namespace spillway::ddl
