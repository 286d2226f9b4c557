#include "pipe/program.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"
#include "pipe/run_to_end.h"

namespace spillway::pipe {
namespace {

const char* name(Work work) {
  switch (work) {
    case Work::forward:
      return "forward";
    case Work::backward:
      return "backward";
    case Work::input_gradient:
      return "input gradient";
    case Work::weight_gradient:
      return "weight gradient";
    case Work::update:
      return "update";
  }
  return "";
}

[[noreturn]] void refuse(const std::string& what) {
  throw BadRequest("[pipe] " + what);
}

/// The rank of each item, and its place among the items of that rank.
class Places {
 public:
  explicit Places(const StepProgram& program) : program_(program) {
    for (int rank = 0; rank < std::ssize(program.items); ++rank)
      for (size_t i = 0; i < program.items[rank].size(); ++i) add(program.items[rank][i], rank, i);
  }
  /// Returns the rank and the place of an item.
  std::pair<int, size_t> of(const Item& item) const {
    const auto found = places_.find(item);
    if (found == places_.end()) refuse(describe(item) + " is missing");
    return found->second;
  }

 private:
  void add(const Item& item, int rank, size_t place) {
    if (item.work == Work::update) return;  // each rank has its own
    const bool known = item.stage >= 0 && item.stage < program_.graph.stages && item.micro_batch >= 0 &&
                       item.micro_batch < program_.micro_batches();
    if (!known) refuse(describe(item) + " is of no stage, or of no micro-batch");
    const bool is_part = item.work == Work::input_gradient || item.work == Work::weight_gradient;
    if (item.work != Work::forward && is_part != program_.splits_backward)
      refuse(str(describe(item), " is there, and backward is ", is_part ? "whole" : "in two parts"));
    if (const int own = program_.rank_of(item.stage, item.micro_batch); own != rank)
      refuse(str(describe(item), " is on rank ", rank, ", and its stage is on rank ", own));
    if (!places_.emplace(item, std::pair(rank, place)).second) refuse(describe(item) + " is there twice");
  }

  const StepProgram& program_;
  std::map<Item, std::pair<int, size_t>> places_;
};

void check_all_are_there(const StepProgram& program, const Places& places) {
  for (int stage = 0; stage < program.graph.stages; ++stage)
    for (int m = 0; m < program.micro_batches(); ++m) {
      (void)places.of({Work::forward, stage, m});
      (void)places.of({program.backward_work(), stage, m});
      if (program.splits_backward) (void)places.of({Work::weight_gradient, stage, m});
    }
  for (size_t rank = 0; rank < program.items.size(); ++rank) {
    const auto& items = program.items[rank];
    const auto update = std::find_if(items.begin(), items.end(), [](auto& i) { return i.work == Work::update; });
    if (update == items.end()) refuse(str("rank ", rank, " has no update"));
    if (update + 1 != items.end()) refuse(str("rank ", rank, " has work after its update"));
  }
}

/// Runs each item once those that it needs are done.
void check_that_it_ends(const StepProgram& program) {
  std::set<Item> done;
  std::vector<size_t> next(program.items.size(), 0);
  const auto at_end = [&](int rank) { return next[rank] == program.items[rank].size(); };
  const auto waiting = run_to_end(std::ssize(next), at_end, [&](int rank) {
    const Item& item = program.items[rank][next[rank]];
    const auto needs = program.needs(item, rank);
    if (!std::all_of(needs.begin(), needs.end(), [&](const Item& need) { return done.contains(need); })) return false;
    if (item.work != Work::update) done.insert(item);
    ++next[rank];
    return true;
  });
  if (waiting)
    refuse(str("ranks wait for each other for ever: rank ", *waiting, " before ",
               describe(program.items[*waiting][next[*waiting]])));
}

/// Checks that the micro-batches of each channel are sent in the order in which they are received.
void check_channels(const StepProgram& program, const Places& places) {
  const auto order_of = [&](int copy, const auto& item_of) {
    std::vector<std::pair<size_t, int>> order;
    for (int m = 0; m < program.micro_batches(); ++m)
      if (program.copy_of[m] == copy) order.emplace_back(places.of(item_of(m)).second, m);
    std::sort(order.begin(), order.end());
    std::vector<int> micro_batches;
    for (const auto& [place, m] : order) micro_batches.push_back(m);
    return micro_batches;
  };
  for (int copy = 0; copy < std::ssize(program.graph.rank_of); ++copy)
    for (const Edge& edge : program.graph.edges) {
      const auto forward = [&](int stage) { return [stage](int m) { return Item{Work::forward, stage, m}; }; };
      const auto backward = [&](int stage) {
        return [&, stage](int m) { return Item{program.backward_work(), stage, m}; };
      };
      if (order_of(copy, forward(edge.from)) != order_of(copy, forward(edge.to)))
        refuse(str("stage ", edge.to, " takes the activations of stage ", edge.from, " in another order"));
      if (order_of(copy, backward(edge.from)) != order_of(copy, backward(edge.to)))
        refuse(str("stage ", edge.from, " takes the errors of stage ", edge.to, " in another order"));
    }
}

}  // namespace

std::string describe(const Item& item) {
  if (item.work == Work::update) return name(item.work);
  return str(name(item.work), " of stage ", item.stage, ", micro-batch ", item.micro_batch);
}

int Graph::ranks() const {
  int most = -1;
  for (const auto& copy : rank_of)
    for (int rank : copy) most = std::max(most, rank);
  return most + 1;
}

Graph chain(int stages, int ranks) {
  Graph graph{.stages = stages, .rank_of = {{}}};
  for (int stage = 0; stage < stages; ++stage) {
    if (stage > 0) graph.edges.push_back({stage - 1, stage});
    graph.rank_of.front().push_back(stage % ranks);
  }
  return graph;
}

std::vector<Item> StepProgram::needs(const Item& item, int rank) const {
  std::vector<Item> all;
  switch (item.work) {
    case Work::forward:
      for (const Edge& edge : graph.edges)
        if (edge.to == item.stage) all.push_back({Work::forward, edge.from, item.micro_batch});
      break;
    case Work::backward:
    case Work::input_gradient:
      all.push_back({Work::forward, item.stage, item.micro_batch});
      for (const Edge& edge : graph.edges)
        if (edge.from == item.stage) all.push_back({backward_work(), edge.to, item.micro_batch});
      break;
    case Work::weight_gradient:
      all.push_back({Work::input_gradient, item.stage, item.micro_batch});
      break;
    case Work::update:
      for (const Item& own : items[rank])
        if (own.work == Work::backward || own.work == Work::weight_gradient) all.push_back(own);
  }
  return all;
}

void check(const StepProgram& program) {
  const Places places(program);
  check_all_are_there(program, places);
  check_that_it_ends(program);
  check_channels(program, places);
}

}  // namespace spillway::pipe
