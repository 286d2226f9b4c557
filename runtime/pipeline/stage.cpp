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
  for (int i = 0; i < static_cast<int>(model.size()); ++i)
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
    const int part = first_ + static_cast<int>(i);
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
  const Values all = run(flight.inputs, batch, before_part);
  flight.output = all.at(last_part());
  Values sent;
  for (int write : writes_) {
    flight.outputs[write] = all.at(write);
    sent[write] = all.at(write).detach();
  }
  return sent;
}

std::vector<at::Tensor> Stage::roots(int64_t micro_batch) const {
  const InFlight& flight = in_flight_.at(micro_batch);
  std::vector<at::Tensor> all;
  if (flight.loss.defined()) all.push_back(flight.loss);
  for (const auto& [part, output] : flight.outputs) all.push_back(output);
  return all;
}

Values Stage::backward(int64_t micro_batch, const Values& errors) {
  std::vector<at::Tensor> gradients;
  const std::vector<at::Tensor> begin = roots(micro_batch);
  InFlight flight = std::move(in_flight_.at(micro_batch));
  in_flight_.erase(micro_batch);
  if (flight.loss.defined()) gradients.emplace_back();
  for (const auto& [part, output] : flight.outputs) gradients.push_back(errors.at(part));
  torch::autograd::backward(begin, gradients);
  Values of_inputs;
  for (auto& [part, leaf] : flight.inputs) of_inputs[part] = leaf.grad();
  return of_inputs;
}

Values Stage::evaluate(const Values& inputs, const Batch& batch, const BeforePart& before_part) const {
  const at::NoGradGuard no_grad;
  return run(inputs, batch, before_part);
}

}  // namespace spillway::runtime
