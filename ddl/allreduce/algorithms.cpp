#include "ddl/allreduce/algorithms.h"

#include <algorithm>
#include <array>
#include <bit>

namespace spillway::ddl {
namespace {

constexpr int64_t kAlignment = 64;

/// One member's view of a reduce-scatter, and where incoming messages of a round go.
class Collecting {
 public:
  Collecting(const Block& block, int me, Element element, std::span<Round> rounds)
      : block_(block), me_(me), element_(element), rounds_(rounds) {}

  /// Where a member's own elements are before anything was added to them.
  bool partial(int member) const { return !block_.original[static_cast<size_t>(member)]; }
  Place source(int member) const { return partial(member) ? Place::partial : Place::input; }

  void send(int round, int to, Range range, bool partial) {
    if (range.size() == 0) return;
    at(round).sends.push_back({rank(to), partial ? Place::partial : Place::input, range, 0, partial});
  }
  /// Returns where the elements come to lie.
  Combination::Source receive(int round, int from, Range range, bool partial) {
    const int64_t offset = end_of_scratch(round);
    if (range.size() > 0) at(round).receives.push_back({rank(from), Place::scratch, range, offset, partial});
    return {Place::scratch, offset, partial};
  }
  void sum(int round, Range range, std::vector<Combination::Source> sources) {
    if (range.size() > 0) at(round).sums.push_back({range, std::move(sources)});
  }
  Combination::Source own(bool partial) const { return {partial ? Place::partial : Place::input, 0, partial}; }
  int me() const { return me_; }
  int members() const { return static_cast<int>(block_.ranks.size()); }

 private:
  int rank(int member) const { return block_.ranks[static_cast<size_t>(member)]; }
  Round& at(int round) { return rounds_[static_cast<size_t>(round)]; }
  int64_t end_of_scratch(int round) {
    const auto& receives = at(round).receives;
    if (receives.empty()) return 0;
    const Transfer& last = receives.back();
    const int64_t bytes = last.range.size() * (last.partial ? partial_bytes(element_) : element_bytes(element_));
    return (last.offset + bytes + kAlignment - 1) / kAlignment * kAlignment;
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

// Members' versions of `range` go to `home`, which adds them up in the members' order.
void collect_at(Collecting& c, int home, Range range) {
  if (c.me() != home) return c.send(0, home, range, c.partial(c.me()));
  const int n = c.members();
  std::vector<Combination::Source> sources(static_cast<size_t>(n), c.own(c.partial(home)));
  for (int step = 1; step < n; ++step) {
    const int member = around(home - step, n);
    sources[static_cast<size_t>(member)] = c.receive(0, member, range, c.partial(member));
  }
  c.sum(0, range, std::move(sources));
}

// --- one shot -------------------------------------------------------------------------------------------------------

void collect_everywhere(Collecting& c, Range range) {
  const int n = c.members(), me = c.me();
  std::vector<Combination::Source> sources(static_cast<size_t>(n), c.own(c.partial(me)));
  for (int step = 1; step < n; ++step) {
    const int to = around(me + step, n), from = around(me - step, n);
    c.send(0, to, range, c.partial(me));
    sources[static_cast<size_t>(from)] = c.receive(0, from, range, c.partial(from));
  }
  c.sum(0, range, std::move(sources));
}

// --- ring -----------------------------------------------------------------------------------------------------------

// Part i begins at member i+1, goes on to the next one, grows there, and ends at member i.
void collect_around(Collecting& c, Range whole) {
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
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(members)));
}

Range half_of(Range range, bool upper) {
  const int64_t middle = range.begin + range.size() / 2;
  return upper ? Range{middle, range.end} : Range{range.begin, middle};
}

/// What a member of the core has while partners `distance` and more apart have been met.
Range half_of(Range whole, int member, int core, int distance) {
  for (int bit = core / 2; bit >= distance && bit > 0; bit /= 2) whole = half_of(whole, (member & bit) != 0);
  return whole;
}

void collect_by_halves(Collecting& c, Range whole) {
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
  // What has been added to since is partial.
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
class HandingOut {
 public:
  HandingOut(const Block& block, int me, std::span<Round> rounds) : block_(block), me_(me), rounds_(rounds) {}
  void send(int round, int to, Range range) { add(rounds_[static_cast<size_t>(round)].sends, to, range); }
  void receive(int round, int from, Range range) { add(rounds_[static_cast<size_t>(round)].receives, from, range); }
  int me() const { return me_; }
  int members() const { return static_cast<int>(block_.ranks.size()); }

 private:
  void add(std::vector<Transfer>& transfers, int member, Range range) const {
    if (range.size() > 0)
      transfers.push_back({block_.ranks[static_cast<size_t>(member)], Place::output, range, 0, false});
  }

  const Block& block_;
  const int me_;
  const std::span<Round> rounds_;
};

void hand_out_from(HandingOut& h, int home, Range range) {
  if (h.me() != home) return h.receive(0, home, range);
  for (int step = 1; step < h.members(); ++step) h.send(0, around(home + step, h.members()), range);
}

void hand_around(HandingOut& h, Range whole) {
  const int n = h.members(), me = h.me();
  for (int round = 0; round < n - 1; ++round) {
    h.send(round, around(me + 1, n), part_of(whole, around(me - round, n), n));
    h.receive(round, around(me - 1, n), part_of(whole, around(me - 1 - round, n), n));
  }
}

void hand_out_by_doubling(HandingOut& h, Range whole) {
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

std::string_view name_of(Algorithm algorithm) {
  static constexpr std::array<std::string_view, 5> kNames{"direct", "ring", "halving", "leader", "oneshot"};
  return kNames[static_cast<size_t>(algorithm)];
}

int collecting_rounds_of(Algorithm algorithm, int members) {
  if (members == 1) return 0;
  if (algorithm == Algorithm::ring) return members - 1;
  if (algorithm == Algorithm::halving) return std::bit_width(static_cast<unsigned>(members - 1));
  return 1;
}

int gathering_rounds_of(Algorithm algorithm, int members) {
  return algorithm == Algorithm::oneshot ? 0 : collecting_rounds_of(algorithm, members);
}

bool keeps_order(Algorithm algorithm) {
  return algorithm != Algorithm::ring && algorithm != Algorithm::halving;
}

std::vector<Share> shares(Algorithm algorithm, const Block& block) {
  const int n = static_cast<int>(block.ranks.size()), core = core_of(n);
  std::vector<Share> result;
  const auto add = [&](int member, Range range) {
    if (range.size() > 0) result.push_back({range, block.ranks[static_cast<size_t>(member)]});
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
  Collecting collecting(block, me, element, rounds);
  if (algorithm == Algorithm::ring) return collect_around(collecting, block.range);
  if (algorithm == Algorithm::halving) return collect_by_halves(collecting, block.range);
  if (algorithm == Algorithm::leader) return collect_at(collecting, 0, block.range);
  if (algorithm == Algorithm::oneshot) return collect_everywhere(collecting, block.range);
  // Everyone begins with its neighbour, so that nobody is sent everything at once.
  for (int step = 0, n = collecting.members(); step < n; ++step)
    collect_at(collecting, around(me + step, n), part_of(block.range, around(me + step, n), n));
}

void add_reduce(const Block& block, int home, int me, Element element, std::span<Round> rounds) {
  Collecting collecting(block, me, element, rounds);
  collect_at(collecting, home, block.range);
}

void add_broadcast(const Block& block, int home, int me, std::span<Round> rounds) {
  HandingOut handing_out(block, me, rounds);
  hand_out_from(handing_out, home, block.range);
}

void add_all_gather(Algorithm algorithm, const Block& block, int me, std::span<Round> rounds) {
  if (algorithm == Algorithm::oneshot) return;
  HandingOut handing_out(block, me, rounds);
  if (algorithm == Algorithm::ring) return hand_around(handing_out, block.range);
  if (algorithm == Algorithm::halving) return hand_out_by_doubling(handing_out, block.range);
  if (algorithm == Algorithm::leader) return hand_out_from(handing_out, 0, block.range);
  for (int step = 0, n = handing_out.members(); step < n; ++step)
    hand_out_from(handing_out, around(me - step, n), part_of(block.range, around(me - step, n), n));
}

}  // namespace spillway::ddl
