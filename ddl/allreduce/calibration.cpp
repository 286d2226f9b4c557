#include "ddl/allreduce/calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "core/clock.h"
#include "core/error.h"
#include "core/median.h"
#include "ddl/allreduce/combine.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

constexpr int kLatencyRepeats = 30;
constexpr int kManyMessages = 16;
constexpr int kExchanges = 4;
constexpr int kAttempts = 3;
/// The minimum share of an exchange's time that its bytes take. It is more than a clock's error, and less than any
/// latency leaves to the bytes.
constexpr double kMinShare = 0.05;
/// The message sizes to try. Whole messages come first. Then come sizes that a network, or MPI over it, may send off
/// without asking the other end.
constexpr std::array<int64_t, 4> kPieces{kWhole, 60 << 10, 28 << 10, 12 << 10};

double seconds_of(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return seconds_since(start);
}

std::vector<double> samples_of(int repeats, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) seconds.push_back(seconds_of(body));
  return seconds;
}

/// Returns the median of the times that the slowest rank took.
double slowest(Communicator& comm, const std::vector<double>& own) {
  std::vector<double> all(own.size() * comm.size()), most = own;
  allgather(comm, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) most[i % own.size()] = std::max(most[i % own.size()], all[i]);
  return median(most);
}

/// The ranks that a rank sends to and hears from on a level. It also tells whether the rank takes part in exchanges of
/// one or of all ranks.
struct Part {
  int next = -1;
  int previous = -1;
  int local = 0;  ///< place among its child's ranks
  int width = 1;  ///< ranks of the smallest child: so many of each child take part

  bool takes_part(int ranks) const { return next >= 0 && local < ranks; }
};

Part part_played_by(const Levels& levels, int level, int rank) {
  const auto& group = levels.groups(level)[levels.group_of(level, rank)];
  const auto ranks_of = [&](int child) {
    return level == 1 ? std::vector{child} : levels.groups(level - 1)[child].ranks;
  };
  Part part;
  size_t width = ranks_of(group.children.front()).size(), own = 0;
  for (size_t c = 0; c < group.children.size(); ++c) {
    const auto ranks = ranks_of(group.children[c]);
    width = std::min(width, ranks.size());
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) continue;
    own = c;
    part.local = found - ranks.begin();
  }
  part.width = width;
  const size_t n = group.children.size();
  if (n == 1 || part.local >= part.width) return part;
  const auto counterpart = [&](size_t child) { return ranks_of(group.children[child % n])[part.local]; };
  part.next = counterpart(own + 1);
  part.previous = counterpart(own + n - 1);
  return part;
}

/// The measurement of one level.
class Trial {
 public:
  Trial(Communicator& comm, int level, const CalibrationOptions& options)
      : comm_(comm),
        level_(level),
        repeats_(options.repeats),
        part_(part_played_by(comm.levels(), level, comm.rank())),
        bytes_(std::max<int64_t>(1, options.message_bytes / part_.width / kExchanges)),
        out_(std::max<size_t>(bytes_, size_t{8} * kManyMessages)),
        in_(out_.size()) {}

  LinkCost link() const {
    LinkCost link{.by_cores = within_hosts()};
    std::array<double, kPieces.size()> seconds{};
    // A rank that is busy while latencies are measured, and idle afterwards, seems to move bytes in no time.
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      link.latency_seconds = latency(1);
      link.message_seconds = std::max(0.0, latency(kManyMessages) - link.latency_seconds) / (kManyMessages - 1);
      seconds = bandwidth_seconds();
      if (*std::min_element(seconds.begin(), seconds.end()) > kExchanges * link.latency_seconds) break;
    }
    // The time of an exchange includes its latency.
    const double least = *std::min_element(seconds.begin(), seconds.end());
    link.latency_seconds = std::min(link.latency_seconds, least / kExchanges);
    const double bytes = static_cast<double>(bytes_) * part_.width * kExchanges;
    for (size_t i = 0; i < kPieces.size(); ++i) {
      const double moving = seconds[i] - kExchanges * link.latency_seconds;
      const double rate = bytes / std::max({1e-15 * bytes, kMinShare * seconds[i], moving});
      // Fewer messages are preferred, unless more are clearly faster.
      if (rate < 1.1 * link.bytes_per_second) continue;
      link.bytes_per_second = rate;
      link.segment_bytes = kPieces[i];
    }
    return link;
  }

 private:
  bool within_hosts() const {
    const auto& groups = comm_.levels().groups(level_);
    return std::all_of(groups.begin(), groups.end(), [this](const Levels::Group& group) {
      return std::all_of(group.ranks.begin(), group.ranks.end(),
                         [&](int rank) { return comm_.hosts()[rank] == comm_.hosts()[group.ranks.front()]; });
    });
  }

  /// Sends `bytes` bytes in messages of `piece` to the next rank, and receives as many. Every rank that takes part
  /// calls it.
  void exchange(size_t piece, size_t bytes) const {
    std::vector<Request> requests;
    for (size_t begin = 0; begin < bytes; begin += piece) {
      const size_t size = std::min(piece, bytes - begin);
      requests.push_back(comm_.receive(part_.previous, Tag::blob, std::span(in_).subspan(begin, size)));
      requests.push_back(comm_.send(part_.next, Tag::blob, std::span(out_).subspan(begin, size)));
    }
    comm_.wait(requests, {.collective = "calibration", .level = level_, .levels = comm_.levels().count(), .stage = 1});
  }

  double latency(size_t messages) const {
    const auto body = [&] { exchange(8, 8 * messages); };
    double own = 0;
    barrier(comm_);
    if (part_.takes_part(1)) {
      body();  // makes the connections
      own = median(samples_of(kLatencyRepeats, body));
    }
    return slowest(comm_, {own});
  }

  /// Returns the seconds of the slowest rank by size of messages.
  std::array<double, kPieces.size()> bandwidth_seconds() const {
    const auto samples = bandwidth_samples();
    std::array<double, kPieces.size()> seconds{};
    for (size_t i = 0; i < kPieces.size(); ++i) seconds[i] = slowest(comm_, samples[i]);
    return seconds;
  }

  /// Returns the seconds of this rank by size of messages. Sizes take turns, because other activity on the machine must
  /// affect all sizes alike.
  std::array<std::vector<double>, kPieces.size()> bandwidth_samples() const {
    std::array<std::vector<double>, kPieces.size()> samples;
    for (int repeat = -1; repeat < repeats_; ++repeat)  // the first turn touches memory
      for (size_t i = 0; i < kPieces.size(); ++i) {
        // One exchange follows another, as rounds do. So the time includes the handshake of both ends before a large
        // message.
        const auto body = [&] {
          for (int turn = 0; turn < kExchanges; ++turn) exchange(kPieces[i], bytes_);
        };
        barrier(comm_);
        const double seconds = part_.takes_part(part_.width) ? seconds_of(body) : 0;
        if (repeat >= 0) samples[i].push_back(seconds);
      }
    return samples;
  }

  Communicator& comm_;
  const int level_;
  const int repeats_;
  const Part part_;
  const size_t bytes_;  ///< bytes of one rank in one exchange
  const std::vector<std::byte> out_;
  mutable std::vector<std::byte> in_;
};

double reduce_seconds_per_byte(Communicator& comm) {
  constexpr int64_t kCount = 1 << 18;
  std::vector<float> a(kCount, 1.0f), b(kCount, 2.0f);
  const std::array<Term, 2> terms{Term{a.data(), true}, {b.data(), false}};
  const auto add = [&] { combine(Element::float32, Reduction::sum, a.data(), terms, kCount); };
  barrier(comm);
  add();  // touches the memory
  return slowest(comm, {median(samples_of(9, add))}) / static_cast<double>(kCount * sizeof(float));
}

}  // namespace

void CalibrationOptions::validate() const {
  if (message_bytes < 1024 || message_bytes > int64_t{1} << 30)
    throw BadRequest(str("[ddl] message_bytes is ", message_bytes, "; allowed: 1024 (1 KiB) to 1073741824 (1 GiB)"));
  if (repeats < 1 || repeats > 1000) throw BadRequest(str("[ddl] repeats is ", repeats, "; allowed: 1 to 1000"));
}

Costs calibrate(Communicator& comm, CalibrationOptions options) {
  options.validate();
  Costs costs;
  for (int level = 1; level <= comm.levels().count(); ++level)
    costs.levels.push_back(Trial(comm, level, options).link());
  costs.reduce_seconds_per_byte = reduce_seconds_per_byte(comm);
  // All ranks have the same times, but not the same bytes, because children of another size exchange other numbers of
  // bytes. So all ranks take the numbers of rank 0.
  broadcast(comm, std::as_writable_bytes(std::span(costs.levels)), 0);
  broadcast(comm, std::as_writable_bytes(std::span(&costs.reduce_seconds_per_byte, 1)), 0);
  return costs;
}

}  // namespace spillway::ddl
