#include "pipe/rerun.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "pipe/run_to_end.h"

namespace spillway::pipe {
namespace {

/// Cycles that are run. The first ones start with empty ranks, and nothing follows the last one.
constexpr int kCycles = 7;
/// The cycle whose times count.
constexpr int kSteadyCycle = kCycles - 2;

class Rerun {
 public:
  Rerun(const Filled& filled, const StepProgram& program, std::span<const Extra> extras, const Costs& costs)
      : program_(program), extras_(extras), costs_(costs), ranks_(filled.items.size()) {
    for (int cycle = 0; cycle < kCycles; ++cycle)
      for (size_t r = 0; r < ranks_.size(); ++r)
        for (int step = 0; step < filled.steps(); ++step)
          for (const FilledItem& item : filled.items[r][step])
            if (item.extra < 0 || item.age <= cycle) ranks_[r].entries.push_back({cycle, step, item});
    run();
  }

  double seconds() const { return end_of_cycle_[kSteadyCycle] - end_of_cycle_[kSteadyCycle - 1]; }

  /// Gives the items of `filled` the times of the steady cycle, from the moment when its first item begins.
  void take_times(Filled& filled) const {
    double start = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::vector<size_t> next(filled.steps());
      for (const Entry& entry : ranks_[r].entries) {
        if (entry.cycle != kSteadyCycle) continue;
        filled.items[r][entry.step][next[entry.step]++] = entry.what;
        start = std::min(start, entry.what.begin);
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      double busy = 0, extra = 0;
      for (auto& step : filled.items[r])
        for (FilledItem& item : step) {
          (item.extra < 0 ? busy : extra) += item.end - item.begin;
          item.begin -= start;
          item.end -= start;
        }
      filled.busy[r] = busy;
      filled.filled[r] = extra;
    }
  }

 private:
  struct Entry {
    int cycle, step;
    FilledItem what;
  };
  struct Rank {
    std::vector<Entry> entries;
    size_t next = 0;
    double free = 0;
  };

  void run() {
    const auto at_end = [&](int r) { return ranks_[r].next == ranks_[r].entries.size(); };
    const auto waiting = run_to_end(std::ssize(ranks_), at_end, [&](int r) { return advance(r); });
    if (waiting) throw BadRequest(str("[pipe] rank ", *waiting, " waits for ever"));
  }

  /// Runs the rank's next entry. Returns false where something that it needs has not been run.
  bool advance(int r) {
    Rank& rank = ranks_[r];
    Entry& entry = rank.entries[rank.next];
    const bool is_item = entry.what.extra < 0;
    const std::optional<double> come = is_item ? come_for_item(r, entry) : come_for_extra(r, entry);
    if (!come) return false;
    entry.what.begin = rank.free = std::max(rank.free, *come);
    ++rank.next;
    is_item ? end_item(r, entry) : end_piece(r, entry);
    entry.what.end = rank.free;
    return true;
  }

  void end_item(int r, const Entry& entry) {
    const double end = ranks_[r].free += seconds_of(entry.what.item, costs_);
    ends_[{entry.cycle, entry.step, entry.what.item, r}] = end;
    if (entry.what.item.work == Work::update) end_of_cycle_[entry.cycle] = std::max(end_of_cycle_[entry.cycle], end);
  }

  void end_piece(int r, const Entry& entry) {
    const Extra& extra = extras_[entry.what.extra];
    const double end = ranks_[r].free += extra.seconds / extra.pieces;
    if (entry.what.piece + 1 == extra.pieces) done_[{entry.cycle - entry.what.age, entry.what.extra}] = end;
  }

  std::optional<double> come_for_item(int r, const Entry& entry) const {
    double come = 0;
    for (const Item& need : program_.needs(entry.what.item, r)) {
      const int from = program_.rank_of(need.stage, need.micro_batch);
      const auto found = ends_.find({entry.cycle, entry.step, need, from});
      if (found == ends_.end()) return std::nullopt;
      come = std::max(come, found->second + (from == r ? 0 : costs_.message));
    }
    return come;
  }

  std::optional<double> come_for_extra(int r, const Entry& entry) const {
    const Extra& extra = extras_[entry.what.extra];
    const int taken = entry.cycle - entry.what.age;
    const auto ready = ends_.find({taken, extra.taken_step, extra.ready, r});
    if (ready == ends_.end()) return std::nullopt;
    double come = ready->second;
    for (int before : extra.after) {
      const auto found = done_.find({taken, before});
      if (found == done_.end()) return std::nullopt;
      come = std::max(come, found->second + (extras_[before].rank == r ? 0 : costs_.message));
    }
    return come;
  }

  const StepProgram& program_;
  const std::span<const Extra> extras_;
  const Costs& costs_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<int, int, Item, int>, double> ends_;  // by cycle, step, item and rank
  std::map<std::pair<int, int>, double> done_;              // by cycle and extra, once all pieces have ended
  std::array<double, kCycles> end_of_cycle_{};
};

}  // namespace

Filled rerun(const Filled& filled, const StepProgram& program, std::span<const Extra> extras, const Costs& costs) {
  Filled again = filled;
  again.busy.resize(filled.items.size());
  again.filled.resize(filled.items.size());
  const Rerun with_extras(filled, program, extras, costs);
  again.seconds = with_extras.seconds();
  with_extras.take_times(again);
  Filled alone = filled;
  for (auto& of_rank : alone.items)
    for (auto& step : of_rank) std::erase_if(step, [](const FilledItem& item) { return item.extra >= 0; });
  again.unfilled_seconds = Rerun(alone, program, extras, costs).seconds();
  return again;
}

}  // namespace spillway::pipe
