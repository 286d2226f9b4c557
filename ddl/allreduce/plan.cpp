#include "ddl/allreduce/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/allreduce/algorithm_rounds.h"
#include "ddl/allreduce/program.h"

namespace spillway::ddl {
namespace {

/// The ranges of the vector that ranks have within a group, in ascending order.
using Shares = std::vector<OwnedRange>;

int rank_of(const Shares& shares, int64_t begin) {
  const auto after = std::upper_bound(shares.begin(), shares.end(), begin,
                                      [](int64_t at, const OwnedRange& share) { return at < share.range.begin; });
  return std::prev(after)->rank;
}

/// Returns the blocks that the children of a group have to share with each other.
std::vector<Block> blocks_of(const std::vector<const Shares*>& children, const std::vector<bool>& original) {
  std::set<int64_t> cuts;
  for (const Shares* child : children)
    for (const OwnedRange& share : *child) cuts.insert({share.range.begin, share.range.end});
  std::vector<Block> blocks;
  for (auto cut = cuts.begin(); cut != cuts.end() && std::next(cut) != cuts.end(); ++cut) {
    Block& block = blocks.emplace_back();
    block.range = {*cut, *std::next(cut)};
    block.original = original;
    for (const Shares* child : children) block.ranks.push_back(rank_of(*child, *cut));
  }
  return blocks;
}

int most_children(const std::vector<Levels::Group>& groups) {
  size_t most = 0;
  for (const auto& group : groups) most = std::max(most, group.children.size());
  return most;
}

}  // namespace

/// The blocks of every group of every level, for a vector of some length.
class Plan::Cuts {
 public:
  Cuts(const Levels& levels, const std::vector<Algorithm>& algorithms, int64_t count) {
    std::vector<Shares> below;
    for (int rank = 0; rank < levels.size(); ++rank) below.push_back(count > 0 ? Shares{{{0, count}, rank}} : Shares{});
    for (int level = 1; level <= levels.count(); ++level) {
      std::vector<Shares> here;
      auto& blocks = blocks_.emplace_back();
      for (const auto& group : levels.groups(level)) {
        blocks.push_back(blocks_within(group, level == 1 ? nullptr : &levels.groups(level - 1), below));
        here.push_back(shares_of(blocks.back(), algorithms[level - 1]));
      }
      below = std::move(here);
    }
  }

  const std::vector<Block>& blocks(int level, int group) const { return blocks_[level - 1][group]; }

 private:
  static std::vector<Block> blocks_within(const Levels::Group& group, const std::vector<Levels::Group>* groups_below,
                                          const std::vector<Shares>& below) {
    std::vector<const Shares*> children;
    std::vector<bool> original;
    for (const int child : group.children) {
      children.push_back(&below[child]);
      original.push_back(!groups_below || (*groups_below)[child].ranks.size() == 1);
    }
    return blocks_of(children, original);
  }

  static Shares shares_of(const std::vector<Block>& blocks, Algorithm algorithm) {
    Shares all;
    for (const Block& block : blocks) {
      const auto some = block.ranks.size() == 1 ? Shares{{block.range, block.ranks[0]}} : shares(algorithm, block);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  std::vector<std::vector<std::vector<Block>>> blocks_;
};

int64_t scratch_bytes_of(const Program& program, Element element) {
  int64_t end = 0;
  for (const Round& round : program.rounds)
    for (const Transfer& t : round.receives)
      if (t.place == BufferKind::scratch)
        end = std::max(end, t.offset + t.range.size() * (t.partial ? partial_bytes(element) : element_bytes(element)));
  return end;
}

Plan::Plan(Levels levels, std::vector<Algorithm> algorithms)
    : levels_(std::move(levels)), algorithms_(std::move(algorithms)) {
  if (std::ssize(algorithms_) != levels_.count())
    throw BadRequest(str("[ddl] a plan with ", algorithms_.size(), " algorithms; required: one for each of ",
                         levels_.count(), " levels"));
  const auto found = std::find(algorithms_.begin(), algorithms_.end(), Algorithm::oneshot);
  if (found != algorithms_.end() && found + 1 != algorithms_.end())
    throw BadRequest(str("[ddl] a plan with oneshot on level ", found - algorithms_.begin() + 1, " of ",
                         levels_.count(), "; allowed on the last level only"));
}

Plan::Plan(const Levels& levels, Algorithm algorithm) : Plan(levels, std::vector(levels.count(), algorithm)) {}

Program Plan::program(int rank, int64_t count, Element element) const {
  return program(Cuts(levels_, algorithms_, count), rank, count, element);
}

void Plan::for_each_program(int64_t count, Element element,
                            const std::function<void(int, const Program&)>& visit) const {
  const Cuts cuts(levels_, algorithms_, count);
  for (int rank = 0; rank < size(); ++rank) visit(rank, program(cuts, rank, count, element));
}

Program Plan::program(const Cuts& cuts, int rank, int64_t count, Element element) const {
  Program program{.levels = levels_.count()};
  std::vector<Round> handing_out;  // from the last level to the first, each level's rounds in order
  std::vector<Range> has{{0, count}};
  for (int level = 1; level <= levels_.count(); ++level) {
    const Algorithm algorithm = algorithms_[level - 1];
    const int members = most_children(levels_.groups(level));
    std::vector<Round> up(collecting_rounds_of(algorithm, members), {.level = level});
    std::vector<Round> down(gathering_rounds_of(algorithm, members), {.level = level, .gather = true});
    has.clear();
    for (const Block& block : cuts.blocks(level, levels_.group_of(level, rank))) {
      const auto found = std::find(block.ranks.begin(), block.ranks.end(), rank);
      if (found == block.ranks.end()) continue;
      if (block.ranks.size() == 1) {
        has.push_back(block.range);
        continue;
      }
      const int me = found - block.ranks.begin();
      add_reduce_scatter(algorithm, block, me, element, up);
      add_all_gather(algorithm, block, me, down);
      for (const OwnedRange& share : shares(algorithm, block))
        if (share.rank == rank) has.push_back(share.range);
    }
    program.rounds.insert(program.rounds.end(), up.begin(), up.end());
    handing_out.insert(handing_out.begin(), down.begin(), down.end());
  }
  program.collecting_rounds = std::ssize(program.rounds);
  program.finished = has;
  program.rounds.insert(program.rounds.end(), handing_out.begin(), handing_out.end());
  program.scratch_bytes = scratch_bytes_of(program, element);
  return program;
}

std::vector<LevelTraffic> Plan::traffic(int64_t count, Element element) const {
  std::vector<LevelTraffic> most(levels_.count());
  std::vector<std::map<int, LevelTraffic>> of_group(most.size());
  for_each_program(count, element, [&](int rank, const Program& steps) {
    std::vector<int64_t> sent(most.size());
    const auto bytes_of = [&](const Transfer& t) {
      return t.range.size() * (t.partial ? partial_bytes(element) : element_bytes(element));
    };
    for (const Round& round : steps.rounds) {
      const int level = round.level - 1;
      auto& group = of_group[level][levels_.group_of(round.level - 1, rank)];
      for (const Transfer& t : round.sends) {
        sent[level] += bytes_of(t);
        group.sent_by_group += bytes_of(t);
      }
      for (const Transfer& t : round.receives) group.received_by_group += bytes_of(t);
    }
    for (size_t level = 0; level < most.size(); ++level)
      most[level].sent_by_rank = std::max(most[level].sent_by_rank, sent[level]);
  });
  for (size_t level = 0; level < most.size(); ++level)
    for (const auto& [group, traffic] : of_group[level]) {
      most[level].sent_by_group = std::max(most[level].sent_by_group, traffic.sent_by_group);
      most[level].received_by_group = std::max(most[level].received_by_group, traffic.received_by_group);
    }
  return most;
}

bool Plan::keeps_order() const {
  return std::all_of(algorithms_.begin(), algorithms_.end(), [](Algorithm a) { return ddl::keeps_order(a); });
}

uint64_t Plan::hash() const {
  uint64_t hash = levels_.hash();
  for (const Algorithm algorithm : algorithms_) hash = hash_in(hash, algorithm);
  return hash;
}

std::string Plan::name() const {
  std::string text;
  for (const Algorithm algorithm : algorithms_) text += str(text.empty() ? "" : " x ", name_of(algorithm));
  return text.empty() ? "alone" : text;
}

void AllreduceOptions::validate() const {
  if (chunk_bytes < 1024 || chunk_bytes > int64_t{1} << 30) {
    throw BadRequest(str("[ddl] chunk_bytes is ", chunk_bytes, "; allowed: 1024 (1 KiB) to 1073741824 (1 GiB)"));
  }
  for (const int64_t bytes : segment_bytes)
    if (bytes < 1024) throw BadRequest(str("[ddl] piece_bytes is ", bytes, "; allowed: 1024 (1 KiB) and more"));
}

}  // namespace spillway::ddl
