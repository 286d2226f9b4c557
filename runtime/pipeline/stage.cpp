#include "runtime/pipeline/stage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>
#include <utility>

namespace spillway::runtime {

Stage::Stage(const std::vector<Part>& model, int first, int end)
    : first_(first), parts_(model.begin() + first, model.begin() + end) {
  std::set<int> reads, writes;
  for (int i = 0; i < std::ssize(model); ++i)
    for (int read : model[i].reads) {
      const bool is_own = i >= first && i < end, reads_own = read >= first && read < end;
      if (is_own && !reads_own) reads.insert(read);
      if (!is_own && reads_own) writes.insert(read);
      if (is_own) last_reader_[read] = i;
    }
  reads_.assign(reads.begin(), reads.end());
  writes_.assign(writes.begin(), writes.end());
}

Values Stage::run(const Values& inputs, const Batch& batch, const BeforePart& before_part) const {
  Values all = inputs;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int part = first_ + i;
    std::vector<at::Tensor> taken;
    for (int read : parts_[i].reads) taken.push_back(all.at(read));
    before_part(part);
    all[part] = parts_[i].run(taken, batch);
    for (int read : parts_[i].reads)
      if (last_reader_.at(read) == part && !std::binary_search(writes_.begin(), writes_.end(), read)) all.erase(read);
  }
  return all;
}

Values Stage::forward(int64_t micro_batch, const Values& inputs, const Batch& batch, const BeforePart& before_part) {
  InFlight& flight = in_flight_[micro_batch];
  for (int read : reads_) flight.inputs[read] = inputs.at(read).detach().requires_grad_();
  forward_again(micro_batch, batch, before_part);
  Values sent;
  for (const auto& [write, output] : flight.outputs) sent[write] = output.detach();
  return sent;
}

void Stage::forward_again(int64_t micro_batch, const Batch& batch, const BeforePart& before_part) {
  InFlight& flight = in_flight_.at(micro_batch);
  const Values all = run(flight.inputs, batch, before_part);
  flight.output = all.at(last_part());
  for (int write : writes_) flight.outputs[write] = all.at(write);
}

void Stage::forget_outputs(int64_t micro_batch) {
  InFlight& flight = in_flight_.at(micro_batch);
  flight.outputs.clear();
  flight.output.reset();
}

std::vector<at::Tensor> Stage::roots(int64_t micro_batch) const {
  const InFlight& flight = in_flight_.at(micro_batch);
  std::vector<at::Tensor> all;
  if (flight.loss.defined()) all.push_back(flight.loss);
  for (const auto& [part, output] : flight.outputs) all.push_back(output);
  return all;
}

Stage::Begun Stage::begin_backward(int64_t micro_batch, const Values& gradients) {
  Begun begun{.roots = roots(micro_batch), .gradients = {}, .inputs = {}};
  auto flight = in_flight_.extract(micro_batch);
  if (flight.mapped().loss.defined()) begun.gradients.emplace_back();
  for (const auto& [part, output] : flight.mapped().outputs) begun.gradients.push_back(gradients.at(part));
  begun.inputs = std::move(flight.mapped().inputs);
  return begun;
}

namespace {

Values gradients_of(const Values& leaves) {
  Values gradients;
  for (const auto& [part, leaf] : leaves) gradients[part] = leaf.grad();
  return gradients;
}

}  // namespace

Values Stage::backward(int64_t micro_batch, const Values& gradients) {
  Begun begun = begin_backward(micro_batch, gradients);
  torch::autograd::backward(begun.roots, begun.gradients);
  return gradients_of(begun.inputs);
}

Values Stage::backward_inputs(int64_t micro_batch, const Values& gradients) {
  Begun begun = begin_backward(micro_batch, gradients);
  std::vector<at::Tensor> leaves;
  for (const auto& [part, leaf] : begun.inputs) leaves.push_back(leaf);
  SplitBackward& split = waiting_.try_emplace(micro_batch, std::move(begun.roots), leaves).first->second;
  split.run_inputs(std::move(begun.gradients));
  return gradients_of(begun.inputs);
}

void Stage::backward_weights(int64_t micro_batch) {
  waiting_.extract(micro_batch).mapped().run_weights();
}

Values Stage::evaluate(const Values& inputs, const Batch& batch, const BeforePart& before_part) const {
  const at::NoGradGuard no_grad;
  return run(inputs, batch, before_part);
}

}  // namespace spillway::runtime
