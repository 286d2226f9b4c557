#include "ddl/allreduce/algorithm_rounds.h"

#include <algorithm>
#include <bit>

#include "core/bytes.h"

namespace spillway::ddl {
namespace {

/// One member's view of a reduce-scatter, with the places in scratch of a round's incoming messages.
class ReduceScatterBuilder {
 public:
  ReduceScatterBuilder(const Block& block, int me, Element element, std::span<Round> rounds)
      : block_(block), me_(me), element_(element), rounds_(rounds) {}

  /// True when a member's own elements are partial results before anything was added to them. source() is the buffer
  /// that they are in.
  bool partial(int member) const { return !block_.original[member]; }
  BufferKind source(int member) const { return partial(member) ? BufferKind::partial : BufferKind::input; }

  void send(int round, int to, Range range, bool partial) {
    if (range.size() == 0) return;
    at(round).sends.push_back({rank(to), partial ? BufferKind::partial : BufferKind::input, range, 0, partial});
  }
  /// Returns the place of the elements when they have come.
  Combination::Source receive(int round, int from, Range range, bool partial) {
    const int64_t offset = end_of_scratch(round);
    if (range.size() > 0) at(round).receives.push_back({rank(from), BufferKind::scratch, range, offset, partial});
    return {BufferKind::scratch, offset, partial};
  }
  void sum(int round, Range range, std::vector<Combination::Source> sources) {
    if (range.size() > 0) at(round).sums.push_back({range, std::move(sources)});
  }
  Combination::Source own(bool partial) const {
    return {partial ? BufferKind::partial : BufferKind::input, 0, partial};
  }
  int me() const { return me_; }
  int members() const { return std::ssize(block_.ranks); }

 private:
  int rank(int member) const { return block_.ranks[member]; }
  Round& at(int round) { return rounds_[round]; }
  int64_t end_of_scratch(int round) {
    const auto& receives = at(round).receives;
    if (receives.empty()) return 0;
    const Transfer& last = receives.back();
    const int64_t bytes = last.range.size() * (last.partial ? partial_bytes(element_) : element_bytes(element_));
    return align_scratch(last.offset + bytes);
  }

  const Block& block_;
  const int me_;
  const Element element_;
  const std::span<Round> rounds_;
};

int around(int member, int n) {
  return (member % n + n) % n;
}

// --- direct and leader ----------------------------------------------------------------------------------------------

// Members' versions of `range` go to `owner`, which adds them up in the members' order.
void reduce_to(ReduceScatterBuilder& c, int owner, Range range) {
  if (c.me() != owner) return c.send(0, owner, range, c.partial(c.me()));
  const int n = c.members();
  std::vector<Combination::Source> sources(n, c.own(c.partial(owner)));
  for (int step = 1; step < n; ++step) {
    const int member = around(owner - step, n);
    sources[member] = c.receive(0, member, range, c.partial(member));
  }
  c.sum(0, range, std::move(sources));
}

// --- one shot -------------------------------------------------------------------------------------------------------

void collect_everywhere(ReduceScatterBuilder& c, Range range) {
  const int n = c.members(), me = c.me();
  std::vector<Combination::Source> sources(n, c.own(c.partial(me)));
  for (int step = 1; step < n; ++step) {
    const int to = around(me + step, n), from = around(me - step, n);
    c.send(0, to, range, c.partial(me));
    sources[from] = c.receive(0, from, range, c.partial(from));
  }
  c.sum(0, range, std::move(sources));
}

// --- ring -----------------------------------------------------------------------------------------------------------

// Part i begins at member i+1, goes from member to member, grows at each, and ends at member i.
void ring_reduce_scatter(ReduceScatterBuilder& c, Range whole) {
  const int n = c.members(), me = c.me(), next = around(me + 1, n), previous = around(me - 1, n);
  for (int round = 0; round < n - 1; ++round) {
    const auto sent = part_of(whole, around(me - 1 - round, n), n),
               grown = part_of(whole, around(me - 2 - round, n), n);
    c.send(round, next, sent, round > 0 || c.partial(me));
    const auto incoming = c.receive(round, previous, grown, round > 0 || c.partial(previous));
    c.sum(round, grown, {incoming, c.own(c.partial(me))});
  }
}

// --- recursive halving ----------------------------------------------------------------------------------------------

int core_of(int members) {
  return std::bit_floor<unsigned>(members);
}

Range half_of(Range range, bool upper) {
  const int64_t middle = range.begin + range.size() / 2;
  return upper ? Range{middle, range.end} : Range{range.begin, middle};
}

/// Returns the range that a member of the core has after it has met the partners that are `distance` or more apart.
Range half_of(Range whole, int member, int core, int distance) {
  for (int bit = core / 2; bit >= distance && bit > 0; bit /= 2) whole = half_of(whole, (member & bit) != 0);
  return whole;
}

void recursive_halving(ReduceScatterBuilder& c, Range whole) {
  const int n = c.members(), core = core_of(n), beyond = n - core, me = c.me();
  int round = 0;
  if (beyond > 0) {
    if (me >= core) return c.send(0, me - core, whole, c.partial(me));
    if (me < beyond) {
      const auto incoming = c.receive(0, me + core, whole, c.partial(me + core));
      c.sum(0, whole, {c.own(c.partial(me)), incoming});
    }
    round = 1;
  }
  // Elements that anything was added to are partial results.
  const auto is_partial = [&](int member, int distance) {
    return c.partial(member) || member < beyond || distance < core / 2;
  };
  for (int distance = core / 2; distance > 0; distance /= 2, ++round) {
    const int partner = me ^ distance;
    const Range had = half_of(whole, me, core, distance * 2);
    const Range kept = half_of(had, (me & distance) != 0), given = half_of(had, (me & distance) == 0);
    c.send(round, partner, given, is_partial(me, distance));
    const auto incoming = c.receive(round, partner, kept, is_partial(partner, distance));
    const auto own = c.own(is_partial(me, distance));
    c.sum(round, kept, me < partner ? std::vector{own, incoming} : std::vector{incoming, own});
  }
}

// --- handing out ----------------------------------------------------------------------------------------------------

/// One member's view of an all-gather.
class AllGatherBuilder {
 public:
  AllGatherBuilder(const Block& block, int me, std::span<Round> rounds) : block_(block), me_(me), rounds_(rounds) {}
  void send(int round, int to, Range range) { add(rounds_[round].sends, to, range); }
  void receive(int round, int from, Range range) { add(rounds_[round].receives, from, range); }
  int me() const { return me_; }
  int members() const { return std::ssize(block_.ranks); }

 private:
  void add(std::vector<Transfer>& transfers, int member, Range range) const {
    if (range.size() > 0) transfers.push_back({block_.ranks[member], BufferKind::output, range, 0, false});
  }

  const Block& block_;
  const int me_;
  const std::span<Round> rounds_;
};

void broadcast_from(AllGatherBuilder& h, int owner, Range range) {
  if (h.me() != owner) return h.receive(0, owner, range);
  for (int step = 1; step < h.members(); ++step) h.send(0, around(owner + step, h.members()), range);
}

void ring_all_gather(AllGatherBuilder& h, Range whole) {
  const int n = h.members(), me = h.me();
  for (int round = 0; round < n - 1; ++round) {
    h.send(round, around(me + 1, n), part_of(whole, around(me - round, n), n));
    h.receive(round, around(me - 1, n), part_of(whole, around(me - 1 - round, n), n));
  }
}

void recursive_doubling(AllGatherBuilder& h, Range whole) {
  const int n = h.members(), core = core_of(n), me = h.me();
  int round = 0;
  for (int distance = 1; distance < core; distance *= 2, ++round) {
    const int partner = me ^ distance;
    if (me >= core) continue;
    h.send(round, partner, half_of(whole, me, core, distance));
    h.receive(round, partner, half_of(whole, partner, core, distance));
  }
  if (me >= core)
    h.receive(round, me - core, whole);
  else if (me + core < n)
    h.send(round, me + core, whole);
}

}  // namespace

int collecting_rounds_of(Algorithm algorithm, int members) {
  if (members == 1) return 0;
  if (algorithm == Algorithm::ring) return members - 1;
  if (algorithm == Algorithm::halving) return std::bit_width<unsigned>(members - 1);
  return 1;
}

int gathering_rounds_of(Algorithm algorithm, int members) {
  return algorithm == Algorithm::oneshot ? 0 : collecting_rounds_of(algorithm, members);
}

std::vector<OwnedRange> shares(Algorithm algorithm, const Block& block) {
  const int n = std::ssize(block.ranks), core = core_of(n);
  std::vector<OwnedRange> result;
  const auto add = [&](int member, Range range) {
    if (range.size() > 0) result.push_back({range, block.ranks[member]});
  };
  if (algorithm == Algorithm::leader) {
    add(0, block.range);
  } else if (algorithm == Algorithm::oneshot) {
    for (int member = 0; member < n; ++member) add(member, block.range);
  } else if (algorithm == Algorithm::halving) {
    for (int member = 0; member < core; ++member) add(member, half_of(block.range, member, core, 1));
  } else {
    for (int member = 0; member < n; ++member) add(member, part_of(block.range, member, n));
  }
  return result;
}

void add_reduce_scatter(Algorithm algorithm, const Block& block, int me, Element element, std::span<Round> rounds) {
  ReduceScatterBuilder collecting(block, me, element, rounds);
  if (algorithm == Algorithm::ring) return ring_reduce_scatter(collecting, block.range);
  if (algorithm == Algorithm::halving) return recursive_halving(collecting, block.range);
  if (algorithm == Algorithm::leader) return reduce_to(collecting, 0, block.range);
  if (algorithm == Algorithm::oneshot) return collect_everywhere(collecting, block.range);
  // Each member begins with its neighbor, so that no member is sent everything at once.
  for (int step = 0, n = collecting.members(); step < n; ++step)
    reduce_to(collecting, around(me + step, n), part_of(block.range, around(me + step, n), n));
}

void add_reduce(const Block& block, int owner, int me, Element element, std::span<Round> rounds) {
  ReduceScatterBuilder collecting(block, me, element, rounds);
  reduce_to(collecting, owner, block.range);
}

void add_broadcast(const Block& block, int owner, int me, std::span<Round> rounds) {
  AllGatherBuilder handing_out(block, me, rounds);
  broadcast_from(handing_out, owner, block.range);
}

void add_all_gather(Algorithm algorithm, const Block& block, int me, std::span<Round> rounds) {
  if (algorithm == Algorithm::oneshot) return;
  AllGatherBuilder handing_out(block, me, rounds);
  if (algorithm == Algorithm::ring) return ring_all_gather(handing_out, block.range);
  if (algorithm == Algorithm::halving) return recursive_doubling(handing_out, block.range);
  if (algorithm == Algorithm::leader) return broadcast_from(handing_out, 0, block.range);
  for (int step = 0, n = handing_out.members(); step < n; ++step)
    broadcast_from(handing_out, around(me - step, n), part_of(block.range, around(me - step, n), n));
}

}  // namespace spillway::ddl
