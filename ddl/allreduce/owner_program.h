/// Programs for vectors of which every part has an owner: the rank that sums it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ddl/allreduce/program.h"
#include "ddl/comm/element.h"
#include "ddl/comm/levels.h"

namespace spillway::ddl {

/// Elements of a vector, and their owner: the rank that sums them.
struct OwnedPart {
  Range range;
  int owner = 0;
};

/// Returns elements 0 … count in `size` parts of (nearly) equal length: part r is [count·r/size, count·(r+1)/size), and
/// its owner is r.
std::vector<OwnedPart> equal_parts(int64_t count, int size);
/// Returns the parts of elements [begin, end), counted from `begin`.
std::vector<OwnedPart> parts_within(std::span<const OwnedPart> parts, Range elements);

/// Makes the program of `rank` that sums every part at its owner, level by level. In each group one rank adds up the
/// elements of the group's children, in their order. It is the rank that has the owner's place there; in the owner's
/// own group it is the owner. So each part crosses a level once for every group but one, not for every rank. The bits
/// are those of an allreduce that keeps the order. One round a level. Every rank gives the same parts, ascending and
/// disjoint. Cost: parts times levels.
Program reduce_program(const Levels& levels, int rank, std::span<const OwnedPart> parts, Element element);
/// Makes the program of `rank` that hands every part from its owner to all ranks.
Program gather_program(const Levels& levels, int rank, std::span<const OwnedPart> parts);

}  // namespace spillway::ddl
