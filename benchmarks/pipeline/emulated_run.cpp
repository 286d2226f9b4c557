#include "benchmarks/pipeline/emulated_run.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "benchmarks/pipeline/linked_ranks.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/median.h"
#include "ddl/comm/communicator.h"
#include "ddl/courier/courier.h"
#include "pipe/channels.h"

namespace spillway::tools {
namespace {

/// The longest wait for another rank's extra.
constexpr std::chrono::seconds kDeadline{60};

/// A clock whose sleeps end when they should. It is behind the steady clock by the time by which its last sleep ended
/// late.
class SleepClock {
 public:
  explicit SleepClock(SteadyTime start) : start_(start) {}

  double now() const { return seconds_since(start_) - late_; }
  double late() const { return late_; }
  void sleep(double seconds) {
    if (seconds <= 0) return;
    const double end = now() + seconds;
    std::this_thread::sleep_until(start_ +
                                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(end)));
    late_ = std::max(0.0, seconds_since(start_) - end);
  }
  /// Takes over the lateness of another rank, for which this one waited.
  void waited(double seconds, double late_of_other) {
    if (seconds > 0) late_ = std::min(late_ + seconds, late_of_other);
  }

 private:
  const SteadyTime start_;
  double late_ = 0;
};

/// The extras that are done, as all ranks see them.
class Board {
 public:
  explicit Board(size_t extras) : cycles_(extras, 0), late_(extras, 0) {}

  /// Says that the extra is done in one cycle more.
  void add(int extra, double late) {
    const std::lock_guard lock(mutex_);
    ++cycles_[extra];
    late_[extra] = late;
    changed_.notify_all();
  }
  /// Blocks until an extra is done in so many cycles.
  void wait(int extra, int cycles, SleepClock& clock) {
    std::unique_lock lock(mutex_);
    if (cycles_[extra] >= cycles) return;
    const SteadyTime start = Clock::now();
    if (!changed_.wait_for(lock, kDeadline, [&] { return failure_ || cycles_[extra] >= cycles; }))
      throw std::runtime_error(str("another rank did not do extra ", extra, " in time"));
    if (failure_) std::rethrow_exception(failure_);
    clock.waited(seconds_since(start), late_[extra]);
  }
  /// Ends all waits, because a rank cannot go on.
  void fail(const std::exception_ptr& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> cycles_;   // by extra
  std::vector<double> late_;  // by extra: the lateness of its rank
  std::exception_ptr failure_;
};

/// The ends of a program's channels at one rank.
class Ends {
 public:
  Ends(const pipe::StepProgram& program, int rank, int64_t bytes) : program_(program), all_(pipe::channels(program)) {
    // Ranks with copies of a stage wait for each other's extras too, so no message of a step may have to wait then.
    const int slots = program.graph.rank_of.size() > 1 ? program.micro_batches() : pipe::slots_needed(program);
    for (size_t i = 0; i < all_.size(); ++i) {
      const pipe::Channel& channel = all_[i];
      if (channel.from_rank != rank && channel.to_rank != rank) continue;
      const bool sends = channel.from_rank == rank;
      own_.push_back({.name = pipe::describe(channel),
                      .number = static_cast<int>(i),
                      .peer = sends ? channel.to_rank : channel.from_rank,
                      .sends = sends,
                      .bytes = bytes,
                      .slots = slots});
    }
  }

  const std::vector<ddl::Channel>& channels() const { return own_; }
  /// Returns the channels that an item receives from, or sends to.
  std::vector<size_t> of(const pipe::Item& item, bool sends) const {
    std::vector<size_t> found;
    if (item.work == pipe::Work::update || item.work == pipe::Work::weight_gradient) return found;
    const bool is_gradient = item.work != pipe::Work::forward;
    for (size_t i = 0; i < own_.size(); ++i) {
      const pipe::Channel& channel = all_[own_[i].number];
      if (own_[i].sends == sends && channel.is_gradient == is_gradient &&
          channel.copy == program_.copy_of[item.micro_batch] &&
          (sends ? channel.from_stage : channel.to_stage) == item.stage)
        found.push_back(i);
    }
    return found;
  }

 private:
  const pipe::StepProgram& program_;
  const std::vector<pipe::Channel> all_;
  std::vector<ddl::Channel> own_;
};

/// A courier with its memory, and the memory that messages are copied from and to.
class Mail {
 public:
  Mail(ddl::Communicator& comm, const std::vector<ddl::Channel>& channels, int64_t bytes)
      : memory_(ddl::Courier::memory_bytes(channels)), data_(bytes), courier_(comm.duplicate(), channels, memory_) {}

  void send(size_t channel, const ddl::Stamp& stamp) {
    courier_.send(channel, stamp, [&](std::span<std::byte> to) { copy(data_, to); });
  }
  /// Returns the stamp, and how long it waited for the message.
  std::pair<ddl::Stamp, double> receive(size_t channel, const ddl::Stamp& due) {
    const auto before = courier_.totals(channel).waited;
    const ddl::Stamp stamp =
        courier_.receive(channel, due, [&](std::span<const std::byte> from) { copy(from, data_); });
    return {stamp, std::chrono::duration<double>(courier_.totals(channel).waited - before).count()};
  }

 private:
  /// Copies as many bytes as both have.
  static void copy(std::span<const std::byte> from, std::span<std::byte> to) {
    const size_t bytes = std::min(from.size(), to.size());
    if (bytes > 0) std::memcpy(to.data(), from.data(), bytes);
  }

  std::vector<std::byte> memory_, data_;
  ddl::Courier courier_;
};

/// The run that all ranks take part in.
struct Run {
  const pipe::StepProgram& program;
  const pipe::Filled& filled;
  const std::span<const pipe::Extra> extras;
  const pipe::Costs& costs;
  const int cycles;
  const int64_t message_bytes;
  const SteadyTime start = Clock::now();
  Board board{extras.size()};
  std::vector<std::vector<DoneItem>> done{program.items.size()};
  /// By rank and cycle: the time at which the cycle's last update ended.
  std::vector<std::vector<double>> ends{program.items.size()};
};

/// One rank of a run.
class Rank {
 public:
  Rank(Run& run, ddl::Communicator& comm)
      : run_(run),
        rank_(comm.rank()),
        ends_(run.program, rank_, run.message_bytes),
        mail_(comm, ends_.channels(), run.message_bytes),
        clock_(run.start) {}

  void work() {
    const auto& steps = run_.filled.items[rank_];
    for (int cycle = 0; cycle < run_.cycles; ++cycle) {
      for (size_t step = 0; step < steps.size(); ++step)
        for (const pipe::FilledItem& item : steps[step]) {
          if (item.extra >= 0 && item.age > cycle) continue;  // nothing was taken before the run
          const int64_t number = static_cast<int64_t>(cycle) * std::ssize(steps) + static_cast<int64_t>(step);
          item.extra >= 0 ? do_extra(item, cycle - item.age) : do_item(item.item, number);
          run_.done[rank_].push_back({cycle, static_cast<int>(step), item});
        }
      run_.ends[rank_].push_back(clock_.now());
    }
  }

 private:
  void do_item(const pipe::Item& item, int64_t step) {
    for (size_t channel : ends_.of(item, /*sends=*/false)) {
      const auto [stamp, waited] = mail_.receive(channel, {step, item.micro_batch, 0});
      clock_.waited(waited, stamp.seconds);
    }
    clock_.sleep(pipe::seconds_of(item, run_.costs));
    for (size_t channel : ends_.of(item, /*sends=*/true)) mail_.send(channel, {step, item.micro_batch, clock_.late()});
  }

  void do_extra(const pipe::FilledItem& item, int taken_cycle) {
    const pipe::Extra& extra = run_.extras[item.extra];
    for (int before : extra.after) run_.board.wait(before, taken_cycle + 1, clock_);
    clock_.sleep(extra.seconds / extra.pieces);
    if (item.piece + 1 == extra.pieces) run_.board.add(item.extra, clock_.late());
  }

  Run& run_;
  const int rank_;
  const Ends ends_;
  Mail mail_;
  SleepClock clock_;
};

/// Returns the cycles before ranks are in step: one, and those whose extras are of cycles before the run.
int cycles_before(const pipe::Filled& filled) {
  int most = 0;
  for (const auto& of_rank : filled.items)
    for (const auto& of_step : of_rank)
      for (const pipe::FilledItem& item : of_step) most = std::max(most, item.age);
  return most + 1;
}

}  // namespace

RunResult run_cycles(const pipe::StepProgram& program, const pipe::Filled& filled, std::span<const pipe::Extra> extras,
                     const pipe::Costs& costs, const RunOptions& options) {
  const int before = cycles_before(filled), ranks = static_cast<int>(program.items.size());
  Run run{.program = program,
          .filled = filled,
          .extras = extras,
          .costs = costs,
          .cycles = before + options.cycles,
          .message_bytes = options.messages.bytes};
  run_linked_ranks(ranks, options.messages.link_bytes_per_second, [&](ddl::Communicator& comm) {
    try {
      Rank(run, comm).work();
    } catch (...) {
      run.board.fail(std::current_exception());
      throw;
    }
  });
  std::vector<double> ends(run.cycles, 0), cycles;
  for (const std::vector<double>& of_rank : run.ends)
    for (size_t i = 0; i < ends.size(); ++i) ends[i] = std::max(ends[i], of_rank[i]);
  for (size_t i = before; i < ends.size(); ++i) cycles.push_back(ends[i] - ends[i - 1]);
  return {.cycle_seconds = median(std::move(cycles)), .done = std::move(run.done)};
}

double message_seconds(const Messages& messages, int repeats) {
  constexpr int kWarmUp = 3;
  constexpr std::chrono::milliseconds kPause{5};
  constexpr size_t kThere = 0, kBack = 1;
  const SteadyTime start = Clock::now();
  std::vector<double> seconds;
  run_linked_ranks(2, messages.link_bytes_per_second, [&](ddl::Communicator& comm) {
    const int peer = 1 - comm.rank();
    const bool is_first = comm.rank() == 0;
    Mail mail(comm,
              {{.name = "a message", .number = 0, .peer = peer, .sends = is_first, .bytes = messages.bytes},
               {.name = "its receipt", .number = 1, .peer = peer, .sends = !is_first, .bytes = 0}},
              messages.bytes);
    for (int i = 0; i < kWarmUp + repeats; ++i) {
      if (is_first) {
        std::this_thread::sleep_for(kPause);
        mail.send(kThere, {i, 0, seconds_since(start)});
        mail.receive(kBack, {i, 0, 0});
      } else {
        const double sent = mail.receive(kThere, {i, 0, 0}).first.seconds;
        if (i >= kWarmUp) seconds.push_back(seconds_since(start) - sent);
        mail.send(kBack, {i, 0, 0});
      }
    }
  });
  return median(std::move(seconds));
}

}  // namespace spillway::tools
