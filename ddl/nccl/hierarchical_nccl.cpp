#include "ddl/nccl/hierarchical_nccl.h"

#include <algorithm>

#include "core/error.h"

namespace spillway::ddl {
namespace {

/// Returns which child of its group on that level a rank belongs to.
int place_of(const Levels& levels, int level, int rank) {
  const auto& children = levels.groups(level)[levels.group_of(level, rank)].children;
  const int child = levels.group_of(level - 1, rank);
  return std::find(children.begin(), children.end(), child) - children.begin();
}

/// Returns the first of the ranks within the group of `rank` that have the same part as `rank` when that level begins.
int first_with_same_part(const Levels& levels, int level, int rank) {
  const auto same_part = [&](int other) {
    for (int below = 1; below < level; ++below)
      if (place_of(levels, below, other) != place_of(levels, below, rank)) return false;
    return true;
  };
  const auto& ranks = levels.groups(level)[levels.group_of(level, rank)].ranks;
  return *std::find_if(ranks.begin(), ranks.end(), same_part);
}

}  // namespace

bool is_even(const Levels& levels) {
  for (int level = 1; level <= levels.count(); ++level)
    for (const auto& group : levels.groups(level))
      if (group.children.size() != levels.groups(level)[0].children.size()) return false;
  return true;
}

HierarchicalNccl::HierarchicalNccl(Communicator& comm, std::unique_ptr<GpuCommunicator> world)
    : comm_(comm), world_(std::move(world)) {
  run(*world_, {.collective = "meeting of all GPUs", .stage = 1}, [] {});
  const bool one_level = comm_.levels().count() <= 1 || !is_even(comm_.levels());
  if (one_level)
    levels_.push_back({1, nullptr, comm_.size(), comm_.rank()});
  else
    divide();
}

void HierarchicalNccl::divide() {
  const Levels& levels = comm_.levels();
  for (int number = 1; number <= levels.count(); ++number) {
    const int place = place_of(levels, number, comm_.rank());
    const int color = first_with_same_part(levels, number, comm_.rank());
    const int size = std::ssize(levels.groups(number)[0].children);
    Level level{number, nullptr, size, place};
    const CollectivePosition making{
        .collective = "meeting of a level's GPUs", .level = number, .levels = levels.count(), .stage = 1};
    // The new group is ready later than the world that it comes from.
    run(*world_, making, [&] { level.group = world_->split(color, place); });
    run(*level.group, making, [] {});
    levels_.push_back(std::move(level));
  }
}

template <class Start>
void HierarchicalNccl::run(GpuCommunicator& group, const CollectivePosition& stage, Start&& start) {
  bool started = false;
  const auto done = [&] {
    if (!started) start();
    started = true;
    return group.finished();
  };
  try {
    comm_.wait_until(done, stage);
  } catch (...) {
    abort();
    throw;
  }
}

void HierarchicalNccl::abort() noexcept {
  for (const Level& level : levels_)
    if (level.group) level.group->abort();
  world_->abort();
}

CollectivePosition HierarchicalNccl::stage(std::string_view collective, const Level& level, int number) const {
  const int count = std::ssize(levels_);
  return {collective, level.number, count, number};
}

int64_t HierarchicalNccl::padded(int64_t count) const {
  return (count + comm_.size() - 1) / comm_.size() * comm_.size();
}

Range HierarchicalNccl::part(int64_t count, int rank) const {
  Range part{0, count};
  for (const Level& level : levels_)
    part = part_of(part, level.group ? place_of(comm_.levels(), level.number, rank) : rank, level.size);
  return part;
}

Range HierarchicalNccl::reduce_scatter(void* data, int64_t count, Element element, Reduction reduction) {
  Range mine{0, count};
  size_t number = 0;
  for (const Level& level : levels_) {
    std::byte* from = static_cast<std::byte*>(data) + mine.begin * element_bytes(element);
    mine = part_of(mine, level.place, level.size);
    std::byte* to = static_cast<std::byte*>(data) + mine.begin * element_bytes(element);
    run(group(level), stage("reduce-scatter", level, ++number),
        [&] { group(level).reduce_scatter(from, to, mine.size(), element, reduction); });
  }
  return mine;
}

void HierarchicalNccl::all_gather(void* data, int64_t count, Element element) {
  std::vector<Range> parts{{0, count}};
  for (const Level& level : levels_) parts.push_back(part_of(parts.back(), level.place, level.size));
  for (size_t i = levels_.size(); i-- > 0;) {
    const Level& level = levels_[i];
    const std::byte* from = static_cast<std::byte*>(data) + parts[i + 1].begin * element_bytes(element);
    std::byte* to = static_cast<std::byte*>(data) + parts[i].begin * element_bytes(element);
    run(group(level), stage("all-gather", level, 2 * levels_.size() - i),
        [&] { group(level).all_gather(from, to, parts[i + 1].size(), element); });
  }
}

void HierarchicalNccl::all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) {
  run(*world_, {.collective = "all-reduce", .stage = 1},
      [&] { world_->all_reduce(from, to, count, element, reduction); });
}

void HierarchicalNccl::broadcast(void* data, int64_t bytes, int root, std::span<const int> members) {
  run(*world_, {.collective = "broadcast", .stage = 1}, [&] { world_->broadcast(data, bytes, root, members); });
}

}  // namespace spillway::ddl
