#include "pipe/schedules.h"

#include <algorithm>

#include "core/error.h"

namespace spillway::pipe {
namespace {

StepProgram on_a_chain(int stages, int ranks, int micro_batches) {
  if (ranks < 1 || micro_batches < 1)
    throw BadRequest(
        str("[pipe] a schedule of ", ranks, " ranks and ", micro_batches, " micro-batches; both are 1 or more"));
  return {.graph = chain(stages, ranks),
          .copy_of = std::vector<int>(micro_batches, 0),
          .items = std::vector<std::vector<Item>>(ranks)};
}

/// The forwards and backwards of a rank, in order.
struct Passes {
  std::vector<Item> forwards, backwards;
};

/// Adds `warm_up` forwards, then a forward and a backward alternately, then the other backwards, and the update.
void alternate(const Passes& passes, int64_t warm_up, std::vector<Item>& items) {
  const auto count = std::ssize(passes.forwards);
  for (int64_t f = 0; f < count + warm_up; ++f) {
    if (f < count) items.push_back(passes.forwards[f]);
    if (f >= warm_up) items.push_back(passes.backwards[f - warm_up]);
  }
  items.push_back({Work::update});
}

void require_units(const char* name, int ranks, int micro_batches) {
  if (micro_batches % ranks != 0)
    throw BadRequest(
        str("[pipe] ", name, " takes micro-batches in units of its ranks; ", ranks, " do not divide ", micro_batches));
}

/// One rank's items under Chimera. Ranks of the upper half meet the micro-batches that go down first, those of the
/// lower half the ones that go up.
class ChimeraRank {
 public:
  ChimeraRank(int rank, int ranks, std::vector<Item>& items)
      : rank_(rank), ranks_(ranks), half_(ranks / 2), is_upper_(rank < half_), items_(items) {}

  /// Takes the items of a unit of micro-batches. The first forwards of the next unit go between its last backwards, so
  /// that unit does not take them again.
  void take_unit(int unit, bool has_next) {
    const int alone = is_upper_ ? half_ - rank_ : rank_ - half_ + 1, together = half_ - alone;
    if (unit == 0) repeat(alone, [&](int i) { take(Work::forward, kMetFirst, i); });
    repeat(together, [&](int i) {
      take(Work::forward, kMetSecond, unit + i);
      take(Work::forward, kMetFirst, unit + alone + i);
    });
    repeat(alone, [&](int i) {
      take(Work::forward, kMetSecond, unit + together + i);
      take(Work::backward, kMetSecond, unit + i);
    });
    repeat(together, [&](int i) {
      take(Work::backward, kMetFirst, unit + i);
      take(Work::backward, kMetSecond, unit + alone + i);
    });
    repeat(alone, [&](int i) {
      take(Work::backward, kMetFirst, unit + together + i);
      if (has_next) take(Work::forward, kMetFirst, unit + ranks_ + i);
    });
  }

 private:
  static constexpr bool kMetFirst = true, kMetSecond = false;

  template <class Body>
  static void repeat(int count, const Body& body) {
    for (int i = 0; i < count; ++i) body(i);
  }

  /// Takes an item of the direction. Its micro-batch is counted from the unit's first one of that direction.
  void take(Work work, bool met_first, int micro_batch) {
    const bool goes_down = met_first == is_upper_;
    const int stage = goes_down ? rank_ : ranks_ - 1 - rank_;
    items_.push_back({work, stage, goes_down ? micro_batch : micro_batch + half_});
  }

  const int rank_, ranks_, half_;
  const bool is_upper_;
  std::vector<Item>& items_;
};

}  // namespace

StepProgram gpipe(int ranks, int micro_batches) {
  StepProgram program = on_a_chain(ranks, ranks, micro_batches);
  for (int r = 0; r < ranks; ++r) {
    for (Work work : {Work::forward, Work::backward})
      for (int m = 0; m < micro_batches; ++m) program.items[r].push_back({work, r, m});
    program.items[r].push_back({Work::update});
  }
  return program;
}

StepProgram one_forward_one_backward(int ranks, int micro_batches) {
  StepProgram program = on_a_chain(ranks, ranks, micro_batches);
  for (int r = 0; r < ranks; ++r) {
    Passes passes;
    for (int m = 0; m < micro_batches; ++m) {
      passes.forwards.push_back({Work::forward, r, m});
      passes.backwards.push_back({Work::backward, r, m});
    }
    alternate(passes, std::min(ranks - r - 1, micro_batches), program.items[r]);
  }
  return program;
}

StepProgram interleaved(int ranks, int micro_batches, int chunks) {
  if (chunks < 1) throw BadRequest(str("[pipe] interleaved has ", chunks, " chunks a rank; allowed: 1 or more"));
  StepProgram program = on_a_chain(ranks * chunks, ranks, micro_batches);
  require_units("interleaved", ranks, micro_batches);
  for (int r = 0; r < ranks; ++r) {
    Passes passes;
    for (int unit = 0; unit < micro_batches; unit += ranks)
      for (int chunk = 0; chunk < chunks; ++chunk)
        for (int m = unit; m < unit + ranks; ++m) {
          passes.forwards.push_back({Work::forward, chunk * ranks + r, m});
          passes.backwards.push_back({Work::backward, (chunks - 1 - chunk) * ranks + r, m});
        }
    const int warm_up = chunks == 1 ? ranks - r - 1 : 2 * (ranks - r - 1) + (chunks - 1) * ranks;
    alternate(passes, std::min(warm_up, micro_batches * chunks), program.items[r]);
  }
  return program;
}

StepProgram chimera(int ranks, int micro_batches) {
  if (ranks % 2 != 0) throw BadRequest(str("[pipe] chimera has ", ranks, " ranks; allowed: even numbers"));
  StepProgram program = on_a_chain(ranks, ranks, micro_batches);
  require_units("chimera", ranks, micro_batches);
  std::vector<int> up = program.graph.rank_of.front();
  std::reverse(up.begin(), up.end());
  program.graph.rank_of.push_back(up);
  const int half = ranks / 2;
  // The first half of each unit of micro-batches goes down, and the second half up.
  for (int m = 0; m < micro_batches; ++m) program.copy_of[m] = m % ranks < half ? 0 : 1;
  for (int r = 0; r < ranks; ++r) {
    ChimeraRank rank(r, ranks, program.items[r]);
    for (int unit = 0; unit < micro_batches; unit += ranks) rank.take_unit(unit, unit + ranks < micro_batches);
    program.items[r].push_back({Work::update});
  }
  return program;
}

StepProgram zero_bubble(int ranks, int micro_batches) {
  StepProgram program = on_a_chain(ranks, ranks, micro_batches);
  program.splits_backward = true;
  for (int r = 0; r < ranks; ++r) {
    std::vector<Item>& items = program.items[r];
    const int warm_up = std::min(ranks - r - 1, micro_batches);
    int weights = 0;
    for (int f = 0; f < micro_batches + warm_up; ++f) {
      if (f < micro_batches) items.push_back({Work::forward, r, f});
      if (f < warm_up) continue;
      items.push_back({Work::input_gradient, r, f - warm_up});
      if (f - warm_up + 1 - weights > r) items.push_back({Work::weight_gradient, r, weights++});
    }
    while (weights < micro_batches) items.push_back({Work::weight_gradient, r, weights++});
    items.push_back({Work::update});
  }
  return program;
}

}  // namespace spillway::pipe
