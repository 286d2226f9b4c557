#include "ddl/process_group/blocking_collectives.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <numeric>
#include <span>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>

#include "core/hash.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/transport.h"
#include "ddl/process_group/host_buffers.h"
#include "ddl/torch/tensor_elements.h"

namespace spillway::ddl {
namespace {

bool is_small_integer(at::ScalarType type) {
  return type == at::kBool || type == at::kByte || type == at::kChar || type == at::kShort;
}

/// A dense tensor of a type that is reduced, which stands for another one. `contiguous`: it is contiguous too.
class Reducible {
 public:
  explicit Reducible(const at::Tensor& tensor, bool contiguous = false) : original_(tensor), stand_in_(tensor) {
    if (stand_in_.is_complex()) stand_in_ = at::view_as_real(stand_in_.resolve_conj());
    if (is_small_integer(stand_in_.scalar_type())) stand_in_ = stand_in_.to(at::kInt);
    if (contiguous || !stand_in_.is_non_overlapping_and_dense()) stand_in_ = stand_in_.contiguous();
  }
  const at::Tensor& tensor() const { return stand_in_; }
  /// Copies the result to the tensor that it stands for.
  void give_back() const {
    if (original_.is_complex())
      at::view_as_real(original_).copy_(stand_in_);
    else if (!stand_in_.is_same(original_))
      original_.copy_(stand_in_);
  }

 private:
  const at::Tensor original_;
  at::Tensor stand_in_;
};

/// Returns the elements of a contiguous tensor as a vector. The operators let ranks agree on shapes, which say nothing
/// of the order of such elements. Returns other tensors as they are.
at::Tensor without_shape(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor.view(-1) : tensor;
}

/// Makes checks of this rank's arguments. A call that they refuse counts as made.
template <class Checks>
void checked(const Comm& comm, const Checks& checks) {
  try {
    checks();
  } catch (const std::exception&) {
    (void)comm->communicator->next_sequence();
    throw;
  }
}

/// Throws for a type that is not reduced, and for a reduction that needs an order where the type has none.
void check_reducible(const at::Tensor& tensor, Reduction reduction, const char* operation) {
  TORCH_CHECK(!tensor.is_complex() || reduction == Reduction::sum || reduction == Reduction::average,
              "[ddl] complex numbers have no ", name_of(reduction), "; allowed: sum, average");
  if (!tensor.is_complex() && !is_small_integer(tensor.scalar_type())) element_of(tensor, operation);
}

/// Throws unless all tensors have the type of the first.
void check_types(const at::Tensor& first, const std::vector<at::Tensor>& others, const char* operation) {
  for (const at::Tensor& other : others)
    TORCH_CHECK(other.scalar_type() == first.scalar_type(), "[ddl] ", operation, ": tensors of ", first.scalar_type(),
                " and ", other.scalar_type(), "; allowed: one type");
}

/// Throws unless what stays on this rank fits.
void check_own(const at::Tensor& output, const at::Tensor& input, const char* operation) {
  TORCH_CHECK(output.numel() == input.numel(), "[ddl] ", operation, ": this rank's output has ", output.numel(),
              " elements, and its input ", input.numel());
}

/// Returns what all ranks of an exchange know alike. Sizes are no part of it: they may differ from pair to pair.
Call exchange_of(at::ScalarType type, Operation operation, int root = -1) {
  const Call call{operation, root, -1, hash_in(kHashSeed, type)};
  return call.with_detail({c10::toString(type)});
}

/// Returns the addresses of a tensor's memory, with what lies between the elements of a strided one.
std::pair<uintptr_t, uintptr_t> addresses_of(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size())};
}

/// Returns the tensor, or a copy where one of the outputs uses its memory, because outputs are filled while it is read.
at::Tensor apart_from(const std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  const auto [begin, end] = addresses_of(input);
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    const auto [from, to] = addresses_of(output);
    if (begin < to && from < end) return input.clone();
  }
  return input;
}

/// Sends `to[r]` to each rank r, receives `from[r]` from it, and waits for all, when all ranks have agreed on the call.
/// Undefined tensors stand for none. What stays on this rank is copied. All memory is made before the first message.
void send_and_receive(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, Communicator& comm,
                      const Call& call, std::string_view collective) {
  const int rank = comm.rank(), size = comm.size();
  std::vector<at::Tensor> buffers(size), kept(size);
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    if (from[r].defined()) buffers[r] = host_buffer(from[r]);
    if (to[r].defined()) kept[r] = apart_from(from, on_host(to[r]));
  }
  if (from[rank].defined() && to[rank].defined())
    from[rank].copy_(apart_from(from, to[rank].reshape(from[rank].sizes())));
  agree(comm, call);
  std::vector<Request> requests;
  requests.reserve(2 * static_cast<size_t>(size));
  for (int step = 1; step < size; ++step) {
    const int source = (rank + size - step) % size, target = (rank + step) % size;
    if (buffers[source].defined()) requests.push_back(comm.receive(source, Tag::blob, bytes_of(buffers[source])));
    if (kept[target].defined()) requests.push_back(comm.send(target, Tag::blob, bytes_of(kept[target])));
  }
  comm.wait(requests, {.collective = collective, .stage = 1});
  for (int r = 0; r < size; ++r)
    if (buffers[r].defined()) give_back(buffers[r], from[r]);
}

/// Returns the largest integer type whose size divides `bytes`, because bytes are moved faster by it. Ranks agree on
/// it, so it must not depend on an address.
at::ScalarType word_for(int64_t bytes) {
  if (bytes % 8 == 0) return at::kLong;
  return bytes % 4 == 0 ? at::kInt : at::kByte;
}

bool is_aligned(const void* address, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uint64_t>(bytes) == 0;
}

/// Gathers the ranks' blocks, of which `all` holds own one already. `all` is contiguous and on the host.
void gather_blocks(const at::Tensor& all, const Comm& comm) {
  const int64_t bytes = static_cast<int64_t>(all.nbytes()), size = comm->communicator->size();
  if (bytes == 0) return;
  const at::ScalarType word = word_for(bytes / size);
  const auto word_bytes = static_cast<int64_t>(c10::elementSize(word));
  if (word != at::kByte && is_aligned(all.data_ptr(), word_bytes))
    return all_gather_(at::from_blob(all.data_ptr(), {bytes / word_bytes}, at::TensorOptions(word)), comm);
  // Blocks of an odd size grow to whole words, and those at an odd address move.
  const int64_t block = bytes / size;
  const int64_t padded = word == at::kByte ? (block + 7) / 8 * 8 : block;
  const at::ScalarType moved = word == at::kByte ? at::kLong : word;
  const at::Tensor words = at::empty({size * padded / static_cast<int64_t>(c10::elementSize(moved))}, moved);
  auto* to = static_cast<std::byte*>(words.data_ptr());
  auto* from = static_cast<std::byte*>(all.data_ptr());
  const int64_t rank = comm->communicator->rank();
  std::memcpy(to + rank * padded, from + rank * block, block);
  all_gather_(words, comm);
  for (int64_t r = 0; r < size; ++r) std::memcpy(from + r * block, to + r * padded, block);
}

/// Returns a tensor's parts, one for each rank, which lie one behind another.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, int size) {
  return tensor.view(-1).chunk(size);
}

void check_count(const std::vector<at::Tensor>& tensors, const Comm& comm, const char* operation) {
  TORCH_CHECK(std::ssize(tensors) == size_of(comm), "[ddl] ", operation, ": ", tensors.size(), " tensors for ",
              size_of(comm), " ranks");
}

/// Fills `output` with the reduction of this rank's part of `vector`, in which part r has sizes[r] elements. The parts
/// lie one behind another. Overwrites the vector, which is contiguous.
void reduce_own_part(const at::Tensor& output, const at::Tensor& vector, const std::vector<int64_t>& sizes,
                     const Comm& comm, Reduction reduction) {
  if (vector.numel() == 0) return;
  const Reducible all(vector);
  const at::Tensor reduced = without_shape(all.tensor());
  std::vector<int64_t> ends(sizes.size()), owners(sizes.size());
  std::partial_sum(sizes.begin(), sizes.end(), ends.begin());
  const int64_t begin = ends[rank_of(comm)] - output.numel();
  if (std::equal(sizes.begin() + 1, sizes.end(), sizes.begin())) {
    reduce_scatter_(reduced, comm, reduction);
  } else {
    // A complex number is two of those that are reduced.
    for (int64_t& end : ends) end *= reduced.numel() / vector.numel();
    std::iota(owners.begin(), owners.end(), 0);
    reduce_(reduced, comm, ends, owners, reduction);
  }
  all.give_back();
  output.copy_(vector.view(-1).narrow(0, begin, output.numel()).view(output.sizes()));
}

}  // namespace

Reduction reduction_of_c10d(int op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return Reduction::sum;
    case c10d::ReduceOp::AVG:
      return Reduction::average;
    case c10d::ReduceOp::MIN:
      return Reduction::minimum;
    case c10d::ReduceOp::MAX:
      return Reduction::maximum;
    default:
      break;
  }
  constexpr std::array names{"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  TORCH_CHECK(false, "[ddl] the backend spillway has no reduction ",
              op >= 0 && op < std::ssize(names) ? names[op] : "of that number", "; allowed: SUM, AVG, MIN, MAX");
}

void reduce_on_all(const std::vector<at::Tensor>& tensors, const Comm& comm, Reduction reduction) {
  const at::NoGradGuard no_grad;
  checked(comm, [&] {  // before the first of them is sent
    for (const at::Tensor& tensor : tensors) check_reducible(tensor, reduction, "all_reduce");
  });
  std::vector<Reducible> all(tensors.begin(), tensors.end());
  std::vector<at::Tensor> reduced;
  for (const Reducible& one : all) reduced.push_back(without_shape(one.tensor()));
  allreduce_(reduced, comm, reduction);
  for (const Reducible& one : all) one.give_back();
}

void reduce_on_root(const at::Tensor& tensor, const Comm& comm, int root, Reduction reduction) {
  const at::NoGradGuard no_grad;
  checked(comm, [&] { check_reducible(tensor, reduction, "reduce"); });
  const Reducible one(tensor, /*contiguous=*/true);
  reduce_(without_shape(one.tensor()), comm, {one.tensor().numel()}, {root}, reduction);
  if (rank_of(comm) == root) one.give_back();
}

void broadcast_from(const std::vector<at::Tensor>& tensors, const Comm& comm, int root) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> dense, vectors;
  for (const at::Tensor& tensor : tensors) {
    dense.push_back(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
    vectors.push_back(without_shape(dense.back()));
  }
  std::vector<int64_t> members(size_of(comm));
  std::iota(members.begin(), members.end(), 0);
  broadcast_(vectors, comm, root, members);
  for (size_t i = 0; i < dense.size(); ++i) give_back(dense[i], tensors[i]);
}

void gather_on_all(const at::Tensor& output, const at::Tensor& input, const Comm& comm) {
  const at::NoGradGuard no_grad;
  checked(comm, [&] {
    TORCH_CHECK(output.numel() == input.numel() * size_of(comm) && output.scalar_type() == input.scalar_type(),
                "[ddl] all_gather: an output of ", output.numel(), " ", output.scalar_type(), " for inputs of ",
                input.numel(), " ", input.scalar_type(), " from ", size_of(comm), " ranks");
  });
  const at::Tensor buffer = host_buffer(output);
  if (input.numel() > 0) parts_of(buffer, size_of(comm))[rank_of(comm)].copy_(input.reshape(-1));
  gather_blocks(buffer, comm);
  give_back(buffer, output);
}

void gather_on_all(const std::vector<at::Tensor>& outputs, const at::Tensor& input, const Comm& comm) {
  const at::NoGradGuard no_grad;
  checked(comm, [&] {
    check_count(outputs, comm, "all_gather");
    check_types(input, outputs, "all_gather");
    check_own(outputs[rank_of(comm)], input, "all_gather");
  });
  const at::Tensor& own = outputs[rank_of(comm)];
  const bool even = std::all_of(outputs.begin(), outputs.end(),
                                [&](const at::Tensor& output) { return output.numel() == input.numel(); });
  if (!even) {
    own.copy_(input.reshape(own.sizes()));
    for (int root = 0; root < std::ssize(outputs); ++root) broadcast_from({outputs[root]}, comm, root);
    return;
  }
  if (input.numel() == 0) return;
  const at::Tensor all = at::empty({size_of(comm) * input.numel()}, input.options().device(at::kCPU));
  gather_on_all(all, input, comm);
  const auto parts = parts_of(all, size_of(comm));
  for (size_t r = 0; r < outputs.size(); ++r) outputs[r].copy_(parts[r].view(outputs[r].sizes()));
}

void reduce_parts(const at::Tensor& output, const at::Tensor& input, const Comm& comm, Reduction reduction) {
  const at::NoGradGuard no_grad;
  checked(comm, [&] {
    TORCH_CHECK(input.numel() == output.numel() * size_of(comm), "[ddl] reduce_scatter: an input of ", input.numel(),
                " elements for outputs of ", output.numel(), " on ", size_of(comm), " ranks");
    check_types(output, {input}, "reduce_scatter");
    check_reducible(input, reduction, "reduce_scatter");
  });
  const at::Tensor vector = at::empty_like(input, at::MemoryFormat::Contiguous).copy_(input);
  reduce_own_part(output, vector, std::vector<int64_t>(size_of(comm), output.numel()), comm, reduction);
}

void reduce_parts(const at::Tensor& output, const std::vector<at::Tensor>& inputs, const Comm& comm,
                  Reduction reduction) {
  const at::NoGradGuard no_grad;
  checked(comm, [&] {
    check_count(inputs, comm, "reduce_scatter");
    check_types(output, inputs, "reduce_scatter");
    check_own(output, inputs[rank_of(comm)], "reduce_scatter");
    check_reducible(output, reduction, "reduce_scatter");
  });
  std::vector<at::Tensor> flat;
  std::vector<int64_t> sizes;
  for (const at::Tensor& input : inputs) {
    flat.push_back(input.reshape(-1));
    sizes.push_back(input.numel());
  }
  reduce_own_part(output, at::cat(flat), sizes, comm, reduction);
}

void gather_on_root(const std::vector<at::Tensor>& outputs, const at::Tensor& input, const Comm& comm, int root) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> to(size_of(comm)), from(size_of(comm));
  to[root] = input;
  if (rank_of(comm) == root) {
    checked(comm, [&] {
      check_count(outputs, comm, "gather");
      check_types(input, outputs, "gather");
      check_own(outputs[root], input, "gather");
    });
    from = outputs;
  }
  const Call call = exchange_of(input.scalar_type(), Operation::gather_to_root, root);
  send_and_receive(to, from, *comm->communicator, call, "gather");
}

void scatter_from(const at::Tensor& output, const std::vector<at::Tensor>& inputs, const Comm& comm, int root) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> to(size_of(comm)), from(size_of(comm));
  from[root] = output;
  if (rank_of(comm) == root) {
    checked(comm, [&] {
      check_count(inputs, comm, "scatter");
      check_types(output, inputs, "scatter");
      check_own(output, inputs[root], "scatter");
    });
    to = inputs;
  }
  const Call call = exchange_of(output.scalar_type(), Operation::scatter, root);
  send_and_receive(to, from, *comm->communicator, call, "scatter");
}

void exchange(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const Comm& comm) {
  const at::NoGradGuard no_grad;
  checked(comm, [&] {
    check_count(outputs, comm, "all_to_all");
    check_count(inputs, comm, "all_to_all");
    check_types(outputs[0], outputs, "all_to_all");
    check_types(outputs[0], inputs, "all_to_all");
    check_own(outputs[rank_of(comm)], inputs[rank_of(comm)], "all_to_all");
  });
  const Call call = exchange_of(outputs[0].scalar_type(), Operation::all_to_all);
  send_and_receive(inputs, outputs, *comm->communicator, call, "all_to_all");
}

}  // namespace spillway::ddl
