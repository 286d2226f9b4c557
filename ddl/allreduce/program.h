/// What one rank does in a reduction, round by round: data, which an executor carries out and a cost model adds up.
#pragma once
#include <cstdint>
#include <vector>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Where elements are. For types that are their own partial type, partial results lie where the output goes.
enum class Place : uint8_t {
  input,    ///< what this rank contributes
  partial,  ///< what some of the ranks' inputs have made
  output,   ///< results
  scratch   ///< what another rank has sent, until the round's sums are taken
};

/// One message. Both ends know it; empty ones are left out.
struct Transfer {
  int peer = -1;
  Place place = Place::input;
  Range range;           ///< of the vector's elements
  int64_t offset = 0;    ///< in scratch: bytes from its start
  bool partial = false;  ///< travels in the type of partial results
};

/// partial[range] = one rank's elements after another's, in this order.
struct Combination {
  struct Source {
    Place place = Place::input;  ///< input, partial or scratch
    int64_t offset = 0;          ///< in scratch: bytes from its start
    bool partial = false;
  };
  Range range;
  std::vector<Source> sources;
};

/// Messages that go together, and the sums that are taken when all have come.
struct Round {
  int level = 0;        ///< of Levels, from 1
  bool gather = false;  ///< results are handed out; else contributions collected
  std::vector<Transfer> sends{};
  std::vector<Transfer> receives{};
  std::vector<Combination> sums{};
};

/// Every rank's program for a plan has as many rounds as the others', and messages between two ranks stand in the same
/// order in both. Contributions are collected first; then `finished` is rounded from partial to output; then results
/// are handed out.
struct Program {
  int levels = 0;  ///< that there are
  std::vector<Round> rounds{};
  int collecting_rounds = 0;      ///< the first so many
  std::vector<Range> finished{};  ///< what this rank has the sums of
  int64_t scratch_bytes = 0;      ///< the most that a round needs
};

/// The most that a round's incoming messages need.
int64_t scratch_bytes_of(const Program& program, Element element);

}  // namespace spillway::ddl
