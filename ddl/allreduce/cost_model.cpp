#include "ddl/allreduce/cost_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>

#include "core/error.h"
#include "ddl/allreduce/program.h"

namespace spillway::ddl {
namespace {

constexpr std::array kAlgorithms{Algorithm::direct, Algorithm::ring, Algorithm::halving, Algorithm::leader,
                                 Algorithm::oneshot};
/// The chunk sizes to try. Where a network works beside the cores, the smallest one that does no worse is preferred.
/// Gaps between rounds, which the model does not know, are then shorter. Where cores move all bytes nothing overlaps,
/// and caches should hold a chunk.
constexpr std::array<int64_t, 3> kChunks{int64_t{256} << 10, int64_t{1} << 20, int64_t{4} << 20};
constexpr std::array<int64_t, 1> kChunksOfCores{int64_t{1} << 20};
/// The maximum bytes that a member receives at once by leader or oneshot. Beyond, moving them takes longer than a
/// latency on any usual link: 256 KiB take 13 us at 20 GB/s.
constexpr int64_t kMaxCollected = int64_t{256} << 10;

/// The maximum load that one round puts on the links of its level and on the ranks.
struct Load {
  int level = 0;
  int64_t messages = 0;
  int64_t bytes = 0;  // bytes of one group's link, one way
  int64_t added = 0;  // bytes that one rank adds
};

int64_t bytes_of(const Transfer& t, Element element) {
  return t.range.size() * (t.partial ? partial_bytes(element) : element_bytes(element));
}

/// The loads of a chunk's rounds.
struct Loads {
  int64_t count = 0;  // the chunk's elements
  std::vector<Load> rounds;
};

Loads loads_of(const Plan& plan, int64_t count, Element element) {
  std::vector<Load> loads;
  std::vector<std::map<int, std::array<int64_t, 2>>> links;  // by round and group: out, in
  plan.for_each_program(count, element, [&](int rank, const Program& program) {
    loads.resize(program.rounds.size());
    links.resize(program.rounds.size());
    for (size_t r = 0; r < program.rounds.size(); ++r) {
      const Round& round = program.rounds[r];
      auto& link = links[r][plan.levels().group_of(round.level - 1, rank)];
      for (const Transfer& t : round.sends) link[0] += bytes_of(t, element);
      for (const Transfer& t : round.receives) link[1] += bytes_of(t, element);
      int64_t added = 0;
      for (const Combination& sum : round.sums)
        added += (std::ssize(sum.sources) - 1) * sum.range.size() * partial_bytes(element);
      Load& load = loads[r];
      load.level = round.level;
      load.messages = std::max<int64_t>({load.messages, std::ssize(round.sends), std::ssize(round.receives)});
      load.added = std::max(load.added, added);
    }
  });
  for (size_t r = 0; r < links.size(); ++r)
    for (const auto& [group, bytes] : links[r]) loads[r].bytes = std::max({loads[r].bytes, bytes[0], bytes[1]});
  return {count, std::move(loads)};
}

/// The times of one chunk: its way through all rounds, and the time that the busiest resource spends on it.
struct ChunkTimes {
  double first_round = 0;
  double way = 0;
  std::vector<double> of_level;
  double adding = 0;

  double busiest(const Costs& costs) const {
    double cores = adding, most = 0;
    for (size_t i = 0; i < of_level.size(); ++i)
      if (costs.levels[i].by_cores)
        cores += of_level[i];
      else
        most = std::max(most, of_level[i]);
    return std::max(cores, most);
  }
};

/// Returns the times of a chunk of `count` elements. Its loads are those of `loads`, with bytes in proportion.
ChunkTimes chunk_times(const Loads& loads, int64_t count, const Costs& costs) {
  ChunkTimes times;
  times.of_level.resize(costs.levels.size());
  const double scale = static_cast<double>(count) / static_cast<double>(loads.count);
  for (const Load& load : loads.rounds) {
    if (load.messages == 0) continue;
    const LinkCost& link = costs.levels[load.level - 1];
    const double sending = link.latency_seconds + static_cast<double>(load.messages - 1) * link.message_seconds +
                           scale * static_cast<double>(load.bytes) / link.bytes_per_second;
    const double added = costs.reduce_seconds_per_byte * scale * static_cast<double>(load.added);
    if (times.way == 0) times.first_round = sending;
    times.of_level[load.level - 1] += sending;
    times.adding += added;
    times.way += sending + added;
  }
  return times;
}

/// Returns the time of the agreement, each round of which lasts as long as its slowest message.
double agreement_seconds(const Levels& levels, const Costs& costs) {
  double seconds = 0;
  for (int step = 1; step < levels.size(); step *= 2) {
    int highest = 1;
    for (int rank = 0; rank < levels.size(); ++rank)
      highest = std::max(highest, levels.joining(rank, (rank + step) % levels.size()));
    double slowest = 0;
    for (int level = 1; level <= highest; ++level) slowest = std::max(slowest, costs.levels[level - 1].latency_seconds);
    seconds += slowest;
  }
  return seconds;
}

/// Predicts the time for `count` elements in chunks of `whole` elements.
Prediction predict_chunks(const Loads& loads, int64_t whole, int64_t count, double agreement, const Costs& costs) {
  const int64_t chunks = (count + whole - 1) / whole;
  const ChunkTimes times = chunk_times(loads, whole, costs);
  const double last = static_cast<double>(count - (chunks - 1) * whole) / static_cast<double>(whole);
  const double after_first = static_cast<double>(chunks - 2) + last;  // chunks
  Prediction all;
  all.seconds = std::max(0.0, agreement - times.first_round) + times.way + after_first * times.busiest(costs);
  const double of_chunk = 1 + after_first;
  for (const double seconds : times.of_level) all.level_seconds.push_back(of_chunk * seconds);
  all.adding_seconds = of_chunk * times.adding;
  return all;
}

/// Returns the maximum number of members that a group of the level joins.
int64_t most_members(const Levels& levels, int level) {
  size_t most = 1;
  for (const Levels::Group& group : levels.groups(level)) most = std::max(most, group.children.size());
  return static_cast<int64_t>(most);
}

/// False where an algorithm saves a latency at too high a price: bytes that its members receive, and scratch for them.
bool suits(Algorithm algorithm, int64_t members, int64_t bytes) {
  if (algorithm != Algorithm::leader && algorithm != Algorithm::oneshot) return true;
  const bool moves_no_more_than_direct = algorithm == Algorithm::oneshot && members == 2;
  return moves_no_more_than_direct || (members - 1) * bytes <= kMaxCollected;
}

}  // namespace

void Costs::validate(const Levels& tree) const {
  if (std::ssize(levels) != tree.count())
    throw BadRequest(str("[ddl] costs of ", levels.size(), " levels; required: ", tree.count()));
  const auto is_time = [](double x) { return std::isfinite(x) && x >= 0; };
  for (const LinkCost& link : levels)
    if (!is_time(link.latency_seconds) || !is_time(link.message_seconds) || !std::isfinite(link.bytes_per_second) ||
        link.bytes_per_second <= 0 || link.segment_bytes < 1024)
      throw BadRequest(str("[ddl] a level's latency is ", link.latency_seconds, " s, a message's cost ",
                           link.message_seconds, " s, its bandwidth ", link.bytes_per_second, " B/s with messages of ",
                           link.segment_bytes,
                           " bytes; allowed: times of 0 and more, bandwidths above, 1024 bytes and more"));
  if (!is_time(reduce_seconds_per_byte))
    throw BadRequest(str("[ddl] reduce_seconds_per_byte is ", reduce_seconds_per_byte, "; allowed: 0 and more"));
}

std::vector<int64_t> segment_bytes(const Costs& costs) {
  std::vector<int64_t> pieces;
  for (const LinkCost& link : costs.levels) pieces.push_back(link.segment_bytes);
  return pieces;
}

Prediction predict(const Choice& choice, int64_t count, Element element, const Costs& costs) {
  const double agreement = agreement_seconds(choice.plan.levels(), costs);
  if (count == 0) return {.seconds = agreement, .level_seconds = std::vector<double>(costs.levels.size())};
  const int64_t whole = std::min(count, choice.options.chunk_bytes / element_bytes(element));
  return predict_chunks(loads_of(choice.plan, whole, element), whole, count, agreement, costs);
}

double link_bound_seconds(const Levels& levels, int level, int64_t bytes, const Costs& costs) {
  const auto n = static_cast<double>(most_members(levels, level));
  return 2 * (n - 1) / n * static_cast<double>(bytes) / costs.levels[level - 1].bytes_per_second;
}

double estimate_seconds(const Levels& levels, int64_t bytes, const Costs& costs) {
  double seconds = costs.reduce_seconds_per_byte * static_cast<double>(bytes);
  for (int level = 1; level <= levels.count(); ++level) {
    seconds += 2 * std::bit_width(static_cast<size_t>(most_members(levels, level) - 1)) *
                   costs.levels[level - 1].latency_seconds +
               link_bound_seconds(levels, level, bytes, costs);
  }
  return seconds;
}

double predict_broadcast_seconds(const Levels& levels, int64_t bytes, std::span<const int> members,
                                 const Costs& costs) {
  double seconds = 0;
  for (int level = 1; level <= levels.count(); ++level) {
    std::map<int, std::set<int>> joined;  // by group of this level: the groups below that have members
    for (int member : members) joined[levels.group_of(level, member)].insert(levels.group_of(level - 1, member));
    size_t most = 1;
    for (const auto& [group, below] : joined) most = std::max(most, below.size());
    const LinkCost& link = costs.levels[level - 1];
    seconds += std::bit_width(most - 1) * (link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second);
  }
  return seconds;
}

double bound_seconds(const Levels& levels, int64_t bytes, const Costs& costs) {
  if (levels.count() == 0) return 0;
  const double size = static_cast<double>(bytes), ranks = levels.size();
  double bound = std::bit_width<unsigned>(levels.size() - 1) * costs.levels.front().latency_seconds;
  bound = std::max(bound, costs.reduce_seconds_per_byte * size * (1 - 1 / ranks));
  for (int level = 1; level <= levels.count(); ++level)
    bound = std::max(bound, link_bound_seconds(levels, level, bytes, costs));
  return bound;
}

std::vector<Plan> candidate_plans(const Levels& levels, int64_t bytes, bool keep_order) {
  std::vector<std::vector<Algorithm>> all{{}};
  for (int level = 1; level <= levels.count(); ++level) {
    std::vector<std::vector<Algorithm>> longer;
    for (const Algorithm algorithm : kAlgorithms) {
      if (keep_order && !ddl::keeps_order(algorithm)) continue;
      if (algorithm == Algorithm::oneshot && level < levels.count()) continue;
      if (!suits(algorithm, most_members(levels, level), bytes)) continue;
      for (std::vector<Algorithm> algorithms : all) {
        algorithms.push_back(algorithm);
        longer.push_back(std::move(algorithms));
      }
    }
    all = std::move(longer);
  }
  std::vector<Plan> plans;
  for (std::vector<Algorithm>& algorithms : all) plans.emplace_back(levels, std::move(algorithms));
  return plans;
}

std::span<const int64_t> candidate_chunks(const Costs& costs) {
  const bool by_cores =
      std::all_of(costs.levels.begin(), costs.levels.end(), [](const LinkCost& link) { return link.by_cores; });
  return by_cores ? std::span<const int64_t>(kChunksOfCores) : std::span<const int64_t>(kChunks);
}

Choice choose(const Levels& levels, int64_t bytes, const Costs& costs, bool keep_order) {
  costs.validate(levels);
  const int64_t element_size = element_bytes(Element::float32);
  const int64_t count = std::max<int64_t>(1, bytes / element_size);
  const double agreement = agreement_seconds(levels, costs);
  const auto chunks = candidate_chunks(costs);
  AllreduceOptions options{.segment_bytes = segment_bytes(costs)};
  Choice best{Plan(levels), options};
  double shortest = std::numeric_limits<double>::infinity();
  for (const Plan& plan : candidate_plans(levels, bytes, keep_order)) {
    // Every rank's program is compiled once, for the largest chunk, because computing the loads takes most of the time
    // here.
    const Loads loads = loads_of(plan, std::min(count, chunks.back() / element_size), Element::float32);
    for (const int64_t chunk : chunks) {
      const int64_t whole = std::min(count, chunk / element_size);
      const double seconds = predict_chunks(loads, whole, count, agreement, costs).seconds;
      // A later choice must be better by more than the model's accuracy.
      if (seconds < 0.98 * shortest) {
        shortest = seconds;
        options.chunk_bytes = chunk;
        best = {plan, options};
      }
      if (chunk >= bytes) break;
    }
  }
  return best;
}

}  // namespace spillway::ddl
