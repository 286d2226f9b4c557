// An oracle for schedules of small traces: the least time of a step under a budget, found by trying every schedule.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <vector>

#include "swap/schedule/replay.h"
#include "swap/schedule/step_trace.h"

namespace spillway::testing {
using namespace swap;

/// A search for the shortest path over the states of a machine with one compute lane and one copy lane each way.
/// Operators' seconds and slots' bytes are whole numbers. Both copy lanes copy one byte a second. The slots that
/// outlive the step must be on the device at its end if they were there at its beginning. The oracle chooses which of
/// them begin there. The time is exponential, which suffices for about 6 slots and 10 operators.
class ExactSchedule {
 public:
  ExactSchedule(const StepTrace& trace, int64_t budget) : trace_(trace), budget_(budget) {}

  /// Returns the seconds of the shortest step, or nullopt when no schedule fits the budget.
  std::optional<int64_t> solve() {
    std::optional<int64_t> best;
    std::vector<int32_t> lasting;
    for (int32_t s = 0; s < slots(); ++s)
      if (slot(s).birth == kBeforeStep) lasting.push_back(s);
    for (uint32_t subset = 0; subset < (1u << lasting.size()); ++subset) {
      State start;
      start.device = start.host = 0;
      for (size_t k = 0; k < lasting.size(); ++k) {
        start.host |= 1u << lasting[k];  // read-only: clean
        if (subset >> k & 1) start.device |= 1u << lasting[k];
      }
      if (resident_bytes(start) > budget_) continue;
      if (auto time = shortest(start); time && (!best || *time < *best)) best = time;
    }
    return best;
  }

 private:
  static constexpr int8_t kIdle = -1;
  struct State {
    uint32_t device = 0;  // slots whose bytes are there, or are being copied there
    uint32_t host = 0;    // slots with a valid copy there
    int8_t next = 0;      // the operator that runs, or that runs next
    int8_t left = 0;      // seconds left of the running operator or replay; 0: none runs
    int8_t replay = kIdle;
    int8_t out = kIdle, out_left = 0, in = kIdle, in_left = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside for a pointer
    auto operator<=>(const State&) const = default;
  };

  int32_t slots() const { return static_cast<int32_t>(trace_.slots.size()); }
  const Slot& slot(int32_t s) const { return trace_.slots[static_cast<size_t>(s)]; }
  const OperatorRecord& op(int32_t i) const { return trace_.operators[static_cast<size_t>(i)]; }
  static bool has(uint32_t set, int32_t s) { return set >> s & 1; }
  bool running(const State& x) const { return x.left > 0; }
  bool usable(const State& x, int32_t s) const { return has(x.device, s) && x.in != s; }

  int64_t resident_bytes(const State& x) const {
    int64_t bytes = 0;
    for (int32_t s = 0; s < slots(); ++s)
      if (has(x.device, s)) bytes += slot(s).bytes;
    if (running(x)) bytes += x.replay != kIdle ? slot(x.replay).bytes : op(x.next).own_bytes;
    return bytes;
  }
  bool busy(const State& x, int32_t s) const {  // an operator or copy uses the slot
    if (x.out == s || x.in == s) return true;
    if (!running(x)) return false;
    if (x.replay == kIdle) return contains(op(x.next).touched, s);
    for (int32_t i : recipe(x).operators)
      if (contains(op(i).touched, s)) return true;
    return false;
  }
  Replay recipe(const State& x) const {
    const Slot& made = slot(x.replay);
    return replay_before(trace_, x.replay, *std::lower_bound(made.uses.begin(), made.uses.end(), x.next));
  }
  static bool contains(const std::vector<int32_t>& v, int32_t x) { return std::find(v.begin(), v.end(), x) != v.end(); }

  std::optional<int64_t> shortest(const State& start) {
    using Entry = std::pair<int64_t, State>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    std::map<State, int64_t> known;
    auto reach = [&](int64_t time, const State& state) {
      auto [at, fresh] = known.try_emplace(state, time);
      if (!fresh && at->second <= time) return;
      at->second = time;
      queue.emplace(time, state);
    };
    reach(0, start);
    while (!queue.empty()) {
      auto [time, x] = queue.top();
      queue.pop();
      if (known[x] < time) continue;
      if (x.next == static_cast<int32_t>(trace_.operators.size()) && !running(x) && x.out == kIdle &&
          (x.device & start.device) == start.device && x.in == kIdle)
        return time;
      for (const State& y : decisions(x)) reach(time, y);
      if (x.left || x.out != kIdle || x.in != kIdle) {
        const int8_t step = shortest_left(x);
        reach(time + step, advance(x, step));
      }
    }
    return std::nullopt;
  }

  std::vector<State> decisions(const State& x) {
    std::vector<State> all;
    auto offer = [&](const State& y) {
      if (resident_bytes(y) <= budget_) all.push_back(y);
    };
    for (int32_t s = 0; s < slots(); ++s) {
      const bool written_now = running(x) && x.replay == kIdle && contains(slot(s).writes, x.next);
      if (usable(x, s) && !has(x.host, s) && x.out == kIdle && !written_now) {
        State y = x;
        y.out = static_cast<int8_t>(s);
        y.out_left = static_cast<int8_t>(slot(s).bytes);
        offer(y);
      }
      if (!has(x.device, s) && has(x.host, s) && x.in == kIdle) {
        State y = x;
        y.in = static_cast<int8_t>(s);
        y.in_left = static_cast<int8_t>(slot(s).bytes);
        y.device |= 1u << s;
        offer(y);
      }
      const bool again = !slot(s).uses.empty() && x.next <= slot(s).uses.back();
      if (usable(x, s) && !busy(x, s) && (has(x.host, s) || (again && can_replay(x, s)))) {
        State y = x;
        y.device &= ~(1u << s);
        offer(y);
      }
      if (!running(x) && !has(x.device, s) && x.next > slot(s).birth && slot(s).birth >= 0 && again &&
          can_replay(x, s)) {
        State y = x;
        y.replay = static_cast<int8_t>(s);
        double seconds = 0;
        bool there = true;
        for (int32_t i : recipe(y).operators) {
          seconds += op(i).seconds;
          for (int32_t t : op(i).touched) there &= t == s || usable(x, t);
        }
        y.left = static_cast<int8_t>(seconds);
        if (there) offer(y);
      }
    }
    if (!running(x) && x.next < static_cast<int32_t>(trace_.operators.size())) {
      State y = x;
      y.left = static_cast<int8_t>(op(x.next).seconds);
      bool ready = true;
      for (int32_t s : op(x.next).touched) {
        ready &= usable(x, s);
        if (contains(slot(s).writes, x.next)) {
          ready &= x.out != s;
          y.host &= ~(1u << s);
        }
      }
      if (ready) offer(y);
    }
    return all;
  }

  /// Returns true when slot `s` can be replayed. Only the gap before its next use counts, and only if it was made
  /// already.
  bool can_replay(const State& x, int32_t s) const {
    auto use = std::lower_bound(slot(s).uses.begin(), slot(s).uses.end(), x.next);
    return use != slot(s).uses.end() && !replay_before(trace_, s, *use).operators.empty();
  }

  int8_t shortest_left(const State& x) const {
    int8_t step = 127;
    if (x.left) step = std::min(step, x.left);
    if (x.out != kIdle) step = std::min(step, x.out_left);
    if (x.in != kIdle) step = std::min(step, x.in_left);
    return step;
  }

  State advance(State x, int8_t step) const {
    if (x.out != kIdle && (x.out_left = static_cast<int8_t>(x.out_left - step)) == 0) {
      x.host |= 1u << x.out;
      x.out = kIdle;
    }
    if (x.in != kIdle && (x.in_left = static_cast<int8_t>(x.in_left - step)) == 0) x.in = kIdle;
    if (x.left && (x.left = static_cast<int8_t>(x.left - step)) == 0) {
      if (x.replay != kIdle) {
        x.device |= 1u << x.replay;
        x.replay = kIdle;
      } else {
        for (int32_t s : op(x.next).births) x.device |= 1u << s;
        for (int32_t s = 0; s < slots(); ++s)
          if (slot(s).death == x.next && x.out != s) x.device &= ~(1u << s), x.host &= ~(1u << s);
        ++x.next;
      }
    }
    return x;
  }

  const StepTrace& trace_;
  const int64_t budget_;
};

}  // namespace spillway::testing
