/// Programs of pipelines: which rank runs which items of a step, in which order.
///
/// A model is cut into stages, and a step's batch into micro-batches. A program lists the items of each rank.
/// Everything else follows from it: messages, their order, and when each item can start (simulate.h). So a schedule is
/// data, and the simulator and the executor run the same items.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::pipe {

/// The kinds of work.
enum class Work : uint8_t {
  forward,          ///< a stage's outputs for one micro-batch
  backward,         ///< the gradients of its inputs and of its weights
  input_gradient,   ///< the gradients of its inputs alone, which the stages before it wait for
  weight_gradient,  ///< the gradients of its weights alone, at any time after those of its inputs
  update,           ///< a rank's optimizer step
};

/// One stage's work for one micro-batch, or an update.
struct Item {
  Work work = Work::forward;
  int stage = -1;        ///< −1 for an update
  int micro_batch = -1;  ///< −1 for an update
  auto operator<=>(const Item&) const = default;
};

/// Returns `forward of stage 2, micro-batch 0`.
std::string describe(const Item& item);

/// A stage that reads an earlier one. Activations go along the edge in forward, and their gradients back in backward.
struct Edge {
  int from = 0, to = 0;
};

/// The stages of a model and the ranks that have them. A copy of the model is a way to place all stages: Chimera has
/// two, in opposite directions.
struct Graph {
  int stages = 1;
  std::vector<Edge> edges = {};                ///< each from a lower stage to a higher one
  std::vector<std::vector<int>> rank_of = {};  ///< by copy and stage
  int ranks() const;
};

/// Returns a chain of stages, each of which reads the one before it. Stage s is on rank s mod `ranks`.
Graph chain(int stages, int ranks);

/// The items of each rank in a step.
struct StepProgram {
  Graph graph;
  std::vector<int> copy_of = {};              ///< by micro-batch: the copy of the model that it runs through
  bool splits_backward = false;               ///< gradients of inputs and of weights are items of their own
  std::vector<std::vector<Item>> items = {};  ///< by rank, in order

  int micro_batches() const { return static_cast<int>(copy_of.size()); }
  /// Returns the rank that does a micro-batch's work of a stage.
  int rank_of(int stage, int micro_batch) const { return graph.rank_of[copy_of[micro_batch]][stage]; }
  /// Returns the work that makes the gradients of a stage's inputs.
  Work backward_work() const { return splits_backward ? Work::input_gradient : Work::backward; }
  /// Returns the items of any rank that must be done before `item` of `rank`: for an update all gradients of its rank,
  /// for another item those whose results it reads.
  std::vector<Item> needs(const Item& item, int rank) const;
};

/// Checks a program. Throws BadRequest naming the item when
/// - it is missing, there twice, of no stage or micro-batch, of other work than splits_backward says, or on another
/// rank
///   than its stage;
/// - a rank has no update, or an item after it;
/// - ranks would wait for each other for ever;
/// - the ends of a channel take its messages in other orders.
void check(const StepProgram& program);

}  // namespace spillway::pipe
