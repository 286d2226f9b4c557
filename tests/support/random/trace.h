// A generator of small random steps for schedules, simulations and bounds.
#pragma once
#include <algorithm>
#include <random>

#include "swap/schedule/step_trace.h"

namespace spillway::testing {
using namespace swap;

/// A step like those of training. Activations are made going forward and used again going backward. Some producers are
/// replayable, and a weight may be read here and there. Seconds and bytes are small whole numbers.
class RandomTrace {
 public:
  explicit RandomTrace(uint32_t seed) : random_(seed) {}

  StepTrace make() {
    const int32_t layers = 3 + below(2);
    const bool weight = below(2) == 1;
    if (weight) add_slot({.bytes = 1 + below(2)});
    std::vector<int32_t> activations;
    for (int32_t l = 0; l < layers; ++l) forward(activations, weight);
    for (int32_t l = layers - 1; l >= 0; --l) backward(activations, static_cast<size_t>(l), weight);
    for (int32_t s : activations) slot(s).death = slot(s).uses.back();
    return std::move(trace_);
  }
  int32_t below(int32_t limit) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(limit)); }

 private:
  void forward(std::vector<int32_t>& activations, bool weight) {
    const int32_t i = add_operator();
    if (!activations.empty()) touch(i, activations.back());
    if (activations.size() > 1 && below(4) == 0) touch(i, activations[static_cast<size_t>(below(2))]);
    if (weight && below(2)) touch(i, 0);
    Slot made{.bytes = 1 + below(5), .birth = i, .born_as_output = true};
    made.uses = made.writes = {i};
    op(i).replayable = below(3) == 0;
    op(i).own_bytes = made.bytes + (!op(i).replayable && below(3) == 0 ? below(3) : 0);
    activations.push_back(add_slot(made));
    op(i).births = {activations.back()};
  }
  void backward(const std::vector<int32_t>& activations, size_t layer, bool weight) {
    const int32_t i = add_operator();
    op(i).own_bytes = below(3);
    touch(i, activations[layer]);
    if (layer > 0 && below(2)) touch(i, activations[layer - 1]);
    if (weight && below(2)) touch(i, 0);
  }
  int32_t add_operator() {
    OperatorRecord record;
    record.seconds = 1 + below(4);
    trace_.operators.push_back(record);
    return static_cast<int32_t>(trace_.operators.size()) - 1;
  }
  int32_t add_slot(Slot made) {
    trace_.slots.push_back(std::move(made));
    return static_cast<int32_t>(trace_.slots.size()) - 1;
  }
  void touch(int32_t i, int32_t s) {
    if (std::find(op(i).touched.begin(), op(i).touched.end(), s) != op(i).touched.end()) return;
    op(i).touched.push_back(s);
    op(i).leased_bytes += slot(s).bytes;
    slot(s).uses.push_back(i);
  }
  OperatorRecord& op(int32_t i) { return trace_.operators[static_cast<size_t>(i)]; }
  Slot& slot(int32_t s) { return trace_.slots[static_cast<size_t>(s)]; }

  std::mt19937 random_;
  StepTrace trace_;
};

}  // namespace spillway::testing
