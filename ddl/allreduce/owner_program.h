/// Vectors of which every part has a rank that is its home.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ddl/allreduce/program.h"
#include "ddl/comm/element.h"
#include "ddl/comm/levels.h"

namespace spillway::ddl {

/// Elements of a vector, and the rank that sums them.
struct HomePart {
  Range range;
  int home = 0;
};

/// Elements 0 … count in `size` parts of (nearly) equal length: part r is [count·r/size, count·(r+1)/size), home r.
std::vector<HomePart> equal_parts(int64_t count, int size);
/// The parts of elements [begin, end), counted from `begin`.
std::vector<HomePart> parts_within(std::span<const HomePart> parts, Range elements);

/// What `rank` does where every part is summed at its home, level by level: in each group the rank that has the home's
/// place there, the home itself in its own, adds up what its group's children have, in their order. So each part
/// crosses a level once for every group but one, not for every rank, and the bits are those of an allreduce that keeps
/// the order. One round a level. Every rank gives the same parts, ascending and disjoint. Cost: parts times levels.
Program reduce_program(const Levels& levels, int rank, std::span<const HomePart> parts, Element element);
/// The way back: every part from its home to all ranks.
Program gather_program(const Levels& levels, int rank, std::span<const HomePart> parts);

}  // namespace spillway::ddl
