/// What the operators do with tensors of cards.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <span>

#include "ddl/comm/element.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gpu_backend.h"

namespace spillway::ddl {

/// By the cards' network: sums and averages, 16-bit floats in float32 through all levels; maxima and minima of integers
/// alone, since the library's of floats lose NaN. All else is staged on the host, so it has the bits of the CPU's
/// allreduce.
bool goes_by_network(Element element, Reduction reduction);

/// As the operators of these names; `tensors` on one device, one of `cards`, with whose ranks `comm`'s are the same.
/// 8 MiB at a time: through the cards' network, with so much memory of the card (three times as much for 16-bit
/// floats), or through as much pinned memory of the host and the CPU's operator. After what the current stream holds,
/// and before what it is given later. By the network all ranks get the same bits, but the order of a sum is the
/// library's and may depend on its size and place: reduce_on_cards and reduce_scatter_on_cards have the bits of
/// allreduce_on_cards of the vector alone, because they call the library as it does. reduce_on_cards moves as much,
/// too; the halves move what halves do.
void allreduce_on_cards(at::TensorList tensors, const Comm& comm, Cards& cards, Reduction reduction);
void broadcast_on_cards(at::TensorList tensors, const Comm& comm, Cards& cards, int root, std::span<const int> members);
void reduce_on_cards(const at::Tensor& vector, const Comm& comm, Cards& cards, at::IntArrayRef ends,
                     at::IntArrayRef homes, Reduction reduction);
void reduce_scatter_on_cards(const at::Tensor& vector, const Comm& comm, Cards& cards, Reduction reduction);
void all_gather_on_cards(const at::Tensor& vector, const Comm& comm, Cards& cards);

/// Registers them for tensors of cards.
void add_card_operators(torch::Library& library);

}  // namespace spillway::ddl
