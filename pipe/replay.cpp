#include "pipe/replay.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace spillway::pipe {
namespace {

/// One rank on its way through its items.
struct Rank {
  size_t next = 0;
  double free = 0;
  int in_flight = 0;
};

class Replay {
 public:
  Replay(const Program& program, const Costs& costs) : program_(program), costs_(costs), ranks_(program.items.size()) {
    result_.spans.resize(ranks_.size());
    result_.busy.resize(ranks_.size());
    result_.in_flight.resize(ranks_.size());
  }

  Replayed run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r)
        while (ranks_[r].next < program_.items[r].size() && advance(static_cast<int>(r))) moved = true;
    }
    for (const auto& spans : result_.spans)
      if (!spans.empty()) result_.seconds = std::max(result_.seconds, spans.back().end);
    return std::move(result_);
  }

 private:
  /// Runs a rank's next item. Returns false when something that it needs is not done yet.
  bool advance(int r) {
    Rank& rank = ranks_[r];
    const Item& item = program_.items[r][rank.next];
    double begin = rank.free;
    for (const Item& need : program_.needs(item, r)) {
      const auto done = ends_.find(need);
      if (done == ends_.end()) return false;
      const bool elsewhere = program_.rank_of(need.stage, need.micro_batch) != r;
      begin = std::max(begin, done->second + (elsewhere ? costs_.message : 0));
    }
    const double seconds = seconds_of(item, costs_);
    rank.free = begin + seconds;
    ++rank.next;
    result_.spans[r].push_back({item, begin, rank.free});
    result_.busy[r] += seconds;
    if (item.work != Work::update) ends_[item] = rank.free;
    if (item.work == Work::forward) result_.in_flight[r] = std::max(result_.in_flight[r], ++rank.in_flight);
    if (item.work == Work::backward || item.work == Work::weight_gradient) --rank.in_flight;
    return true;
  }

  const Program& program_;
  const Costs& costs_;
  std::vector<Rank> ranks_;
  std::map<Item, double> ends_;
  Replayed result_;
};

}  // namespace

double seconds_of(const Item& item, const Costs& costs) {
  if (item.work == Work::update) return costs.update;
  const StageSeconds& stage = costs.stages[item.stage];
  switch (item.work) {
    case Work::forward:
      return stage.forward;
    case Work::input_gradient:
      return stage.input_gradient;
    case Work::weight_gradient:
      return stage.weight_gradient;
    default:
      return stage.backward();
  }
}

Costs equal_stages(int stages, double forward, double backward, double weight_share) {
  const StageSeconds stage{forward, backward * (1 - weight_share), backward * weight_share};
  return {.stages = std::vector<StageSeconds>(stages, stage)};
}

double Replayed::utilization() const {
  const double work = std::accumulate(busy.begin(), busy.end(), 0.0);
  return seconds > 0 ? work / (seconds * static_cast<double>(busy.size())) : 0;
}

Replayed replay(const Program& program, const Costs& costs) {
  return Replay(program, costs).run();
}

}  // namespace spillway::pipe
