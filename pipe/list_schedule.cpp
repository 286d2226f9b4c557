#include "pipe/list_schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace spillway::pipe {
namespace {

class ListSchedule {
 public:
  ListSchedule(Program& program, int in_flight, const Costs& costs)
      : program_(program), in_flight_(in_flight), costs_(costs), ranks_(program.items.size()) {
    for (int stage = 0; stage < program.graph.stages; ++stage)
      for (int m = 0; m < program.micro_batches(); ++m)
        for (Work work : {Work::forward, Work::backward})
          ranks_[program.rank_of(stage, m)].left.insert({work, stage, m});
  }

  void run() {
    while (const auto next = choose()) take(*next);
    for (size_t r = 0; r < ranks_.size(); ++r) program_.items[r].push_back({Work::update});
  }

 private:
  struct Rank {
    double free = 0;
    std::set<Item> left;
    std::map<int, int> items_of = {};  ///< by micro-batch in flight: its items that are left
  };
  struct Choice {
    double begin = 0;
    size_t rank = 0;
    Item item = {};
  };

  /// Returns the item that can begin first of all ranks; nothing when all are done.
  std::optional<Choice> choose() const {
    std::optional<Choice> best;
    const auto key = [](const Choice& choice) {
      const bool is_forward = choice.item.work == Work::forward;
      return std::tuple(choice.begin, is_forward, choice.item.micro_batch, -choice.item.stage, choice.rank);
    };
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (const Item& item : ranks_[r].left) {
        const auto begin = begin_of(item, r);
        if (!begin) continue;
        const Choice choice{*begin, r, item};
        if (!best || key(choice) < key(*best)) best = choice;
      }
    return best;
  }

  /// Returns when a rank can begin an item; nothing while it waits for another one that has not been taken.
  std::optional<double> begin_of(const Item& item, size_t r) const {
    const Rank& rank = ranks_[r];
    if (item.micro_batch > 0 && rank.left.contains({item.work, item.stage, item.micro_batch - 1})) return std::nullopt;
    const bool enters = item.work == Work::forward && !rank.items_of.contains(item.micro_batch);
    if (enters && std::ssize(rank.items_of) >= in_flight_) return std::nullopt;
    double begin = rank.free;
    for (const Item& need : program_.needs(item, static_cast<int>(r))) {
      const auto found = ends_.find(need);
      if (found == ends_.end()) return std::nullopt;
      const bool elsewhere = program_.rank_of(need.stage, need.micro_batch) != static_cast<int>(r);
      begin = std::max(begin, found->second + (elsewhere ? costs_.message : 0));
    }
    return begin;
  }

  void take(const Choice& choice) {
    Rank& rank = ranks_[choice.rank];
    const int m = choice.item.micro_batch;
    if (!rank.items_of.contains(m))
      rank.items_of[m] = static_cast<int>(
          std::count_if(rank.left.begin(), rank.left.end(), [&](const Item& item) { return item.micro_batch == m; }));
    if (--rank.items_of[m] == 0) rank.items_of.erase(m);
    rank.left.erase(choice.item);
    rank.free = ends_[choice.item] = choice.begin + seconds_of(choice.item, costs_);
    program_.items[choice.rank].push_back(choice.item);
  }

  Program& program_;
  const int in_flight_;
  const Costs& costs_;
  std::vector<Rank> ranks_;
  std::map<Item, double> ends_;
};

}  // namespace

Program list_schedule(const Graph& graph, int micro_batches, int in_flight, const Costs& costs) {
  if (micro_batches < 1 || in_flight < 1)
    throw BadRequest(str("[pipe] a schedule of ", micro_batches, " micro-batches, ", in_flight,
                         " of them in flight; both are 1 or more"));
  if (graph.rank_of.size() != 1) throw BadRequest("[pipe] a list schedule takes one copy of the model");
  for (const Edge& edge : graph.edges)
    if (edge.from < 0 || edge.from >= edge.to || edge.to >= graph.stages)
      throw BadRequest(str("[pipe] an edge leads from stage ", edge.from, " to stage ", edge.to, " of ", graph.stages));
  Program program{.graph = graph,
                  .copy_of = std::vector<int>(micro_batches, 0),
                  .items = std::vector<std::vector<Item>>(graph.ranks())};
  ListSchedule(program, in_flight, costs).run();
  return program;
}

Graph levels_down_and_up(int ranks) {
  Graph graph{.stages = 2 * ranks, .rank_of = {{}}};
  for (int stage = 0; stage < graph.stages; ++stage) {
    if (stage > 0) graph.edges.push_back({stage - 1, stage});
    const int mirrored = graph.stages - 1 - stage;
    if (stage + 1 < mirrored) graph.edges.push_back({stage, mirrored});
    graph.rank_of.front().push_back(std::min(stage, mirrored));
  }
  return graph;
}

}  // namespace spillway::pipe
