/// The values that a rank's stages receive from other stages and send to them.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "ddl/torch/messages.h"
#include "runtime/pipeline/channel_meter.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/pipeline/pipeline_clock.h"
#include "runtime/pipeline/stage.h"

namespace spillway::runtime {

/// The ends of all channels at the stages of one rank. Values for another stage of the rank are kept until it
/// takes them. Thread: one at a time.
class StageChannels {
 public:
  /// Makes the channels. Received tensors are on `device`. Collective over the copy of the model.
  StageChannels(std::shared_ptr<const Pipeline> pipeline, c10::Device device, std::shared_ptr<PipelineClock> clock);

  /// Begins a pass over micro-batches, which all ranks begin in the same order. A message of another pass is refused.
  void begin_pass() { ++pass_; }
  /// Counts messages and waits until stop().
  void start();
  void stop();

  /// Returns the outputs of other stages that a stage reads. Blocks until they have come. Throws CommError.
  Values take_inputs(int stage, int64_t micro_batch, int64_t samples);
  /// Returns the gradients of a stage's outputs, summed over the stages that read them. Blocks as take_inputs() does.
  Values take_gradients(int stage, int64_t micro_batch, int64_t samples);
  /// Sends a stage's outputs to the stages that read them. Throws CommError.
  void send_outputs(int stage, int64_t micro_batch, const Values& outputs);
  /// Sends the gradients of a stage's inputs to the stages that made them. Throws CommError.
  void send_gradients(int stage, int64_t micro_batch, const Values& gradients);

  /// Returns the messages counted so far, by channel.
  const std::vector<ChannelMessages>& totals() const { return meter_.totals(); }
  /// Returns the counted seconds in which messages were waited for, by the clock.
  double waited() const { return waited_; }

 private:
  /// The end of a channel at a stage.
  struct End {
    int channel = -1;         ///< number of the courier's channel; −1: both stages are on this rank
    int stage = 0;            ///< the stage at the other end
    std::vector<int> values;  ///< parts whose outputs, or their gradients, travel
  };
  /// The ends at a stage of this rank.
  struct StageEnds {
    PlacedStage at;
    std::vector<End> inputs = {}, outputs = {};  ///< activations
    std::vector<End> gradients_in = {}, gradients_out = {};
  };
  /// The key of values that one stage of this rank has left for another one.
  using LocalKey = std::tuple<int, int, bool, int64_t>;  // from, to, whether gradients, micro-batch

  const PipelinePlan& plan() const { return pipeline_->plan; }
  const StageEnds& ends_of(int stage) const;
  Values receive(int to, const End& end, bool gradients, int64_t micro_batch, int64_t samples);
  void send(int from, const End& end, bool gradients, int64_t micro_batch, const Values& values);

  const std::shared_ptr<const Pipeline> pipeline_;
  const c10::Device device_;
  const std::shared_ptr<PipelineClock> clock_;
  std::vector<StageEnds> stages_;
  ddl::Messages messages_;
  std::map<LocalKey, Values> local_;
  int64_t pass_ = 0;  ///< passes so far, the same on every rank: the stamp's step
  bool is_counting_ = false;
  double waited_ = 0;
  ChannelMeter meter_;
};

}  // namespace spillway::runtime
