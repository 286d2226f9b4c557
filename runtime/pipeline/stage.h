/// A stage of a model: consecutive parts, and the micro-batches that are in flight in them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "runtime/models/part.h"
#include "runtime/passes/split_backward.h"

namespace spillway::runtime {

/// Outputs of parts, or their gradients, by the part's number in the model.
using Values = std::map<int, at::Tensor>;

/// Consecutive parts of a model. Gradients of weights accumulate as in any backward. Thread: one at a time.
class Stage {
 public:
  /// Takes parts `first` to `end` − 1 of the model.
  Stage(const std::vector<Part>& model, int first, int end);

  /// Returns the parts of earlier stages whose outputs it takes, ascending.
  const std::vector<int>& reads() const { return reads_; }
  /// Returns its parts whose outputs later stages take, ascending.
  const std::vector<int>& writes() const { return writes_; }

  /// Called with a part's number before it runs.
  using BeforePart = std::function<void(int part)>;

  /// Runs the stage for a micro-batch, whose graph is kept until backward(), unless gradients are off. `inputs` are
  /// those of reads(). Returns those of writes(), without their graphs.
  Values forward(int64_t micro_batch, const Values& inputs, const Batch& batch, const BeforePart& before_part);
  /// Forgets all of a micro-batch in flight but its inputs, until forward_again().
  void forget_outputs(int64_t micro_batch);
  /// Runs the stage again for a micro-batch in flight, from its inputs, and keeps its graph.
  void forward_again(int64_t micro_batch, const Batch& batch, const BeforePart& before_part);
  /// Returns the last part's output of a micro-batch in flight, with its graph.
  const at::Tensor& output(int64_t micro_batch) const { return in_flight_.at(micro_batch).output; }
  /// Makes backward() of a micro-batch begin at `loss`.
  void set_loss(int64_t micro_batch, at::Tensor loss) { in_flight_.at(micro_batch).loss = std::move(loss); }
  /// Returns the tensors that backward() begins at.
  std::vector<at::Tensor> roots(int64_t micro_batch) const;
  /// Runs backward of a micro-batch, and forgets it. `gradients` are the gradients of writes(). Returns those of
  /// reads().
  Values backward(int64_t micro_batch, const Values& gradients);
  /// Runs the part of backward that earlier stages wait for, and keeps what the rest reads. Takes and returns what
  /// backward() does.
  Values backward_inputs(int64_t micro_batch, const Values& gradients);
  /// Runs the rest of a micro-batch's backward, most gradients of weights, and forgets it.
  void backward_weights(int64_t micro_batch);

  /// Runs the stage without gradients. Returns those of writes(), and the last part's output.
  Values evaluate(const Values& inputs, const Batch& batch, const BeforePart& before_part) const;
  int last_part() const { return first_ + std::ssize(parts_) - 1; }

 private:
  struct InFlight {
    Values inputs = {};      ///< leaves
    Values outputs = {};     ///< outputs of writes(), with their graphs
    at::Tensor output = {};  ///< output of the last part
    at::Tensor loss = {};
  };

  /// A backward pass that begins.
  struct Begun {
    std::vector<at::Tensor> roots, gradients;
    Values inputs;
  };

  /// Takes a micro-batch out of those in flight.
  Begun begin_backward(int64_t micro_batch, const Values& gradients);
  /// Runs the parts. Returns the outputs of writes() and of the last part; others go when their last reader has run.
  Values run(const Values& inputs, const Batch& batch, const BeforePart& before_part) const;

  const int first_;
  std::vector<Part> parts_;
  std::vector<int> reads_, writes_;
  std::map<int, int> last_reader_;            // by part: of its own parts
  std::map<int64_t, InFlight> in_flight_;     // by micro-batch
  std::map<int64_t, SplitBackward> waiting_;  // by micro-batch: gradients of weights
};

}  // namespace spillway::runtime
