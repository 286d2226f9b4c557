/// A courier's messages as operators of LibTorch's dispatcher.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <memory>
#include <optional>
#include <vector>

#include "ddl/courier/courier.h"
#include "ddl/torch/staging_memory.h"

namespace spillway::ddl {

/// A Courier as operators take it (a torchbind class, `spillway::Courier`), with the memory of its slots, which is
/// counted as staging.
struct CourierHandle final : torch::CustomClassHolder {
  CourierHandle(std::shared_ptr<Communicator> comm, std::vector<Channel> channels);

  const StagingMemory memory;
  std::optional<Courier> courier;  ///< none in a simulated world, where messages are neither sent nor come
};
using Messages = c10::intrusive_ptr<CourierHandle>;

/// Makes a courier whose memory comes from LibTorch's allocator. `comm` is its alone. Throws BadRequest.
Messages make_messages(std::shared_ptr<Communicator> comm, std::vector<Channel> channels);

/// Sends the tensors as one message of a channel. They are dense, on the CPU, and together no larger than the channel's
/// messages. Blocks while the channel's slots are full. Throws CommError. Operator: `spillway::send`.
void send(at::TensorList tensors, const Messages& messages, size_t channel, const Stamp& stamp);

/// Overwrites the tensors with the channel's next message. They have the sizes, strides and types of those that were
/// sent. Blocks until the message has come. Returns the stamp's seconds. Throws CommError, also when the message is of
/// another step or micro-batch than `due`. Operator: `spillway::receive_`.
double receive_(at::TensorList tensors, const Messages& messages, size_t channel, const Stamp& due);

}  // namespace spillway::ddl
