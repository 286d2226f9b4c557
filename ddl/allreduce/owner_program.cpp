#include "ddl/allreduce/owner_program.h"

#include <algorithm>

#include "ddl/allreduce/algorithm_rounds.h"

namespace spillway::ddl {
namespace {

/// Returns the place of `owner`'s child among the children of its group at `level`.
int place_of(const Levels& levels, int level, int owner) {
  const auto& children = levels.groups(level)[levels.group_of(level, owner)].children;
  const auto found = std::find(children.begin(), children.end(), levels.group_of(level - 1, owner));
  return found - children.begin();
}

/// Returns the rank of a group that has the same place as `owner` has in its own group; there it is `owner` itself.
int representative(const Levels& levels, int level, int group, int owner) {
  for (; level > 0; --level) {
    const auto& children = levels.groups(level)[group].children;
    group = children[place_of(levels, level, owner) % children.size()];
  }
  return group;  // a group of level 0 is a rank
}

/// A part as the children of a rank's group share it at a level, and its owner among them there.
struct Shared {
  Block block;
  int owner = 0;
  int me = -1;  ///< -1: not among them
};

Shared share_of(const Levels& levels, int level, int rank, const OwnedPart& part) {
  Shared shared;
  const auto& children = levels.groups(level)[levels.group_of(level, rank)].children;
  shared.block.range = part.range;
  for (const int child : children) {
    const int member = representative(levels, level - 1, child, part.owner);
    if (member == rank) shared.me = std::ssize(shared.block.ranks);
    shared.block.ranks.push_back(member);
    shared.block.original.push_back(level == 1 || levels.groups(level - 1)[child].ranks.size() == 1);
  }
  shared.owner = place_of(levels, level, part.owner) % std::ssize(children);
  return shared;
}

void for_each_share(const Levels& levels, int level, int rank, std::span<const OwnedPart> parts, const auto& body) {
  for (const OwnedPart& part : parts) {
    const Shared shared = share_of(levels, level, rank, part);
    if (shared.me >= 0 && shared.block.ranks.size() > 1) body(shared);
  }
}

}  // namespace

std::vector<OwnedPart> equal_parts(int64_t count, int size) {
  std::vector<OwnedPart> parts;
  for (int rank = 0; rank < size; ++rank)
    if (const Range range = part_of({0, count}, rank, size); range.size() > 0) parts.push_back({range, rank});
  return parts;
}

std::vector<OwnedPart> parts_within(std::span<const OwnedPart> parts, Range elements) {
  std::vector<OwnedPart> inside;
  for (const OwnedPart& part : parts) {
    const Range range{std::max(part.range.begin, elements.begin) - elements.begin,
                      std::min(part.range.end, elements.end) - elements.begin};
    if (range.size() > 0) inside.push_back({range, part.owner});
  }
  return inside;
}

Program reduce_program(const Levels& levels, int rank, std::span<const OwnedPart> parts, Element element) {
  Program program{.levels = levels.count()};
  for (int level = 1; level <= levels.count(); ++level) {
    Round& round = program.rounds.emplace_back(Round{.level = level});
    for_each_share(levels, level, rank, parts, [&](const Shared& shared) {
      add_reduce(shared.block, shared.owner, shared.me, element, {&round, 1});
    });
  }
  program.collecting_rounds = levels.count();
  for (const OwnedPart& part : parts)
    if (part.owner == rank) program.finished.push_back(part.range);
  program.scratch_bytes = scratch_bytes_of(program, element);
  return program;
}

Program gather_program(const Levels& levels, int rank, std::span<const OwnedPart> parts) {
  Program program{.levels = levels.count()};
  for (int level = levels.count(); level > 0; --level) {
    Round& round = program.rounds.emplace_back(Round{.level = level, .gather = true});
    for_each_share(levels, level, rank, parts, [&](const Shared& shared) {
      add_broadcast(shared.block, shared.owner, shared.me, {&round, 1});
    });
  }
  return program;
}

}  // namespace spillway::ddl
