#include "runtime/pipeline/stage_channels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "ddl/comm/communicator.h"
#include "pipe/channels.h"

namespace spillway::runtime {

StageChannels::StageChannels(std::shared_ptr<const Pipeline> pipeline, c10::Device device,
                             std::shared_ptr<PipelineClock> clock)
    : pipeline_(std::move(pipeline)), device_(device), clock_(std::move(clock)) {
  for (const PlacedStage& at : plan().stages_at(pipeline_->place)) stages_.push_back({.at = at});
  std::vector<ddl::Channel> channels;
  const auto all = pipe::channels(plan().program);
  // Returns the number of the courier's channel, made when it is first asked for.
  const auto channel_of = [&](int from, int to, bool gradients, int direction, int64_t bytes) -> int {
    const auto found = std::find_if(all.begin(), all.end(), [&](const pipe::Channel& one) {
      return one.from_stage == from && one.to_stage == to && one.is_gradient == gradients && one.copy == direction;
    });
    if (found == all.end()) return -1;
    const bool sends = found->from_rank == pipeline_->place;
    const int number = found - all.begin();
    channels.push_back({.name = pipe::describe(*found),
                        .number = number,
                        .peer = sends ? found->to_rank : found->from_rank,
                        .sends = sends,
                        .bytes = bytes,
                        .slots = plan().slots});
    meter_.add(number, *found);
    return std::ssize(channels) - 1;
  };
  const auto& edges = plan().program.graph.edges;
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto [from, to] = edges[i];
    const auto& values = plan().values_of_edge[i];
    int64_t bytes = 0;
    for (int value : values) bytes += plan().values[value].bytes();
    for (StageEnds& ends : stages_) {
      const auto [stage, direction] = ends.at;
      if (stage == from) {
        ends.outputs.push_back({channel_of(from, to, false, direction, bytes), to, values});
        ends.gradients_in.push_back({channel_of(to, from, true, direction, bytes), to, values});
      }
      if (stage == to) {
        ends.inputs.push_back({channel_of(from, to, false, direction, bytes), from, values});
        ends.gradients_out.push_back({channel_of(to, from, true, direction, bytes), from, values});
      }
    }
  }
  messages_ = ddl::make_messages(pipeline_->of_copy->duplicate(), std::move(channels));
}

void StageChannels::start() {
  if (messages_->courier) meter_.start(*messages_->courier);
  is_counting_ = true;
}

void StageChannels::stop() {
  is_counting_ = false;
  if (messages_->courier) meter_.stop(*messages_->courier);
}

const StageChannels::StageEnds& StageChannels::ends_of(int stage) const {
  return *std::find_if(stages_.begin(), stages_.end(), [&](const StageEnds& ends) { return ends.at.stage == stage; });
}

Values StageChannels::receive(int to, const End& end, bool gradients, int64_t micro_batch, int64_t samples) {
  if (end.channel < 0) {
    auto left = local_.extract({end.stage, to, gradients, micro_batch});
    return std::move(left.mapped());
  }
  const double start = clock_->now();
  Values values;
  std::vector<at::Tensor> tensors;
  for (int value : end.values) {
    tensors.push_back(plan().values[value].empty(samples, device_));
    values[value] = tensors.back();
  }
  clock_->received(ddl::receive_(tensors, messages_, end.channel, {pass_, micro_batch, 0}));
  if (is_counting_) waited_ += clock_->now() - start;
  return values;
}

void StageChannels::send(int from, const End& end, bool gradients, int64_t micro_batch, const Values& values) {
  if (end.channel < 0) {
    Values& left = local_[{from, end.stage, gradients, micro_batch}];
    for (int value : end.values) left[value] = values.at(value);
    return;
  }
  std::vector<at::Tensor> tensors;
  for (int value : end.values) tensors.push_back(values.at(value).contiguous(plan().values[value].format));
  ddl::send(tensors, messages_, end.channel, {pass_, micro_batch, clock_->now()});
}

Values StageChannels::take_inputs(int stage, int64_t micro_batch, int64_t samples) {
  Values inputs;
  for (const End& end : ends_of(stage).inputs)
    inputs.merge(receive(stage, end, /*gradients=*/false, micro_batch, samples));
  return inputs;
}

Values StageChannels::take_gradients(int stage, int64_t micro_batch, int64_t samples) {
  Values gradients;
  for (const End& end : ends_of(stage).gradients_in)
    for (auto& [value, gradient] : receive(stage, end, /*gradients=*/true, micro_batch, samples)) {
      const auto [known, is_new] = gradients.try_emplace(value, gradient);
      if (!is_new) known->second = known->second + gradient;
    }
  return gradients;
}

void StageChannels::send_outputs(int stage, int64_t micro_batch, const Values& outputs) {
  for (const End& end : ends_of(stage).outputs) send(stage, end, /*gradients=*/false, micro_batch, outputs);
}

void StageChannels::send_gradients(int stage, int64_t micro_batch, const Values& gradients) {
  for (const End& end : ends_of(stage).gradients_out) send(stage, end, /*gradients=*/true, micro_batch, gradients);
}

}  // namespace spillway::runtime
