#include "ddl/card_operators.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "core/category.h"
#include "core/error.h"
#include "ddl/agreement.h"
#include "ddl/collectives.h"
#include "ddl/tensors.h"

namespace spillway::ddl {
namespace {

/// Flat views of tensors' elements, of one type.
using Views = std::vector<at::Tensor>;

int64_t count_of(const Views& views) {
  int64_t count = 0;
  for (const at::Tensor& view : views) count += view.numel();
  return count;
}

/// Calls `on_batch` for the elements of a group of for_each_group(), at most kFusionBytes at a time.
void for_each_batch(at::TensorList group, auto on_batch) {
  if (group.size() > 1) {
    Views views;
    for (const at::Tensor& tensor : group) views.push_back(elements(tensor, {0, tensor.numel()}));
    if (count_of(views) > 0) on_batch(views);
    return;
  }
  const at::Tensor& tensor = group[0];
  const auto step = kFusionBytes / static_cast<int64_t>(tensor.element_size());
  for (int64_t begin = 0; begin < tensor.numel(); begin += step)
    on_batch(Views{elements(tensor, {begin, std::min(begin + step, tensor.numel())})});
}

/// One behind another in `into`, whose type may be another.
void pack(const Views& views, const at::Tensor& into, bool wait) {
  int64_t at = 0;
  for (const at::Tensor& view : views) {
    const bool last = at + view.numel() == into.numel();
    // A stream's copies end in order: who waits for the last has waited for all.
    if (view.numel() > 0) into.narrow(0, at, view.numel()).copy_(view, /*non_blocking=*/!(wait && last));
    at += view.numel();
  }
}

void unpack(const Views& views, const at::Tensor& from) {
  int64_t at = 0;
  for (const at::Tensor& view : views) {
    if (view.numel() > 0) view.copy_(from.narrow(0, at, view.numel()), /*non_blocking=*/true);
    at += view.numel();
  }
}

at::Tensor on_host(const Views& views, bool filled = true) {
  const at::Tensor host = host_staging(count_of(views), views[0].scalar_type(), views[0].device());
  if (filled) pack(views, host, /*wait=*/true);
  return host;
}

at::Tensor on_card(int64_t count, at::ScalarType type, at::Device card) {
  const CategoryScope staging(Category::staging);
  return at::empty({count}, at::TensorOptions(type).device(card));
}

bool is_16_bits(Element element) {
  return partial_bytes(element) != element_bytes(element);
}

/// The reduction of the views, in their order; undefined behind them.
at::Tensor reduced_by_network(const Views& views, int ranks, DeviceLevels& levels, Reduction reduction) {
  const Element element = element_of(views[0], "allreduce_");
  const Element partial = is_16_bits(element) ? Element::float32 : element;
  const auto type = views[0].scalar_type();
  const int64_t count = count_of(views), padded = levels.padded(count);
  at::Tensor buffer = on_card(padded, is_16_bits(element) ? at::kFloat : type, views[0].device());
  pack(views, buffer.narrow(0, 0, count), /*wait=*/false);
  buffer.narrow(0, count, padded - count).zero_();
  const Reduction started = reduction == Reduction::average ? Reduction::sum : reduction;
  const Range mine = levels.reduce_scatter(buffer.data_ptr(), padded, partial, started);
  const at::Tensor part = buffer.narrow(0, mine.begin, mine.size());
  if (reduction == Reduction::average) {
    if (part.is_floating_point())
      part.div_(ranks);
    else
      part.div_(ranks, "trunc");
  }
  if (is_16_bits(element)) {  // rounded once, by the rank that has the sum
    buffer = on_card(padded, type, views[0].device());
    buffer.narrow(0, mine.begin, mine.size()).copy_(part);
  }
  levels.all_gather(buffer.data_ptr(), padded, element);
  return buffer;
}

/// All ranks mean the same call, on cards.
void agree_on(Communicator& comm, Operation operation, at::TensorList tensors, Reduction reduction, uint64_t more = 0) {
  const Element element = element_of(tensors[0], "allreduce_");
  uint64_t signature = hash_in(hash_in(signature_of(tensors), static_cast<uint64_t>(reduction)), more);
  const Call call{operation, -1, total_bytes(tensors) / element_bytes(element), signature};
  agree(comm, call.with_detail({name_of(element), " on cards"}));
}

DeviceLevels* network_for(Cards& cards, const at::Tensor& tensor, Reduction reduction) {
  const bool by_network = goes_by_network(element_of(tensor, "allreduce_"), reduction);
  return by_network ? cards.levels(tensor.device()) : nullptr;
}

Operation operation_of(Reduction reduction) {
  return static_cast<Operation>(static_cast<int64_t>(Operation::allreduce_sum) + static_cast<int64_t>(reduction));
}

void broadcast_batch(const Views& views, DeviceLevels& levels, int root, std::span<const int> members) {
  if (views.size() == 1) return levels.broadcast(views[0].data_ptr(), views[0].nbytes(), root, members);
  const at::Tensor buffer = on_card(count_of(views), views[0].scalar_type(), views[0].device());
  pack(views, buffer, /*wait=*/false);
  levels.broadcast(buffer.data_ptr(), static_cast<int64_t>(buffer.nbytes()), root, members);
  unpack(views, buffer);
}

/// The ends of the parts within elements [begin, end), counted from `begin`.
std::vector<int64_t> within(at::IntArrayRef ends, int64_t begin, int64_t end) {
  std::vector<int64_t> inside;
  for (const int64_t part : ends) inside.push_back(std::clamp(part, begin, end) - begin);
  return inside;
}

void check_ends(at::IntArrayRef ends, at::IntArrayRef homes, int64_t count, int ranks) {
  TORCH_CHECK(ends.size() == homes.size(), "[ddl] reduce_: ", ends.size(), " parts have ", homes.size(), " homes");
  int64_t last = 0;
  for (size_t i = 0; i < ends.size(); last = ends[i++])
    if (ends[i] < last || ends[i] > count || homes[i] < 0 || homes[i] >= ranks)
      throw BadRequest(str("[ddl] reduce_: part ", i, " ends at ", ends[i], " at home ", homes[i],
                           "; allowed: ascending ends up to ", count, ", homes from 0 to ", ranks - 1));
}

/// Own parts of `vector` become those of `sums`, which are its elements from `begin`.
void take_own(const at::Tensor& vector, const at::Tensor& sums, int64_t begin, at::IntArrayRef ends,
              at::IntArrayRef homes, int rank) {
  for (size_t i = 0; i < ends.size(); ++i) {
    const Range part{i == 0 ? 0 : ends[i - 1], ends[i]};
    if (homes[i] != rank || part.size() == 0) continue;
    elements(vector, {begin + part.begin, begin + part.end})
        .copy_(sums.narrow(0, part.begin, part.size()), /*non_blocking=*/true);
  }
}

}  // namespace

bool goes_by_network(Element element, Reduction reduction) {
  const bool sums = reduction == Reduction::sum || reduction == Reduction::average;
  return sums || element == Element::int32 || element == Element::int64;
}

void allreduce_on_cards(at::TensorList tensors, const Comm& comm, Cards& cards, Reduction reduction) {
  for_each_group(tensors, [&](at::TensorList group) {
    agree_on(*comm->communicator, operation_of(reduction), group, reduction);
    DeviceLevels* levels = network_for(cards, group[0], reduction);
    for_each_batch(group, [&](const Views& views) {
      if (levels) return unpack(views, reduced_by_network(views, comm->communicator->size(), *levels, reduction));
      const at::Tensor host = on_host(views);
      allreduce_(host, comm, reduction);
      unpack(views, host);
    });
  });
  bump_versions(tensors);
}

void broadcast_on_cards(at::TensorList tensors, const Comm& comm, Cards& cards, int root,
                        std::span<const int> members) {
  Communicator& world = *comm->communicator;
  if (std::find(members.begin(), members.end(), world.rank()) == members.end()) return;
  const bool receiver = world.rank() != root, all = static_cast<int>(members.size()) == world.size();
  const std::vector<int64_t> ranks(members.begin(), members.end());
  for_each_group(tensors, [&](at::TensorList group) {
    // Also says what is wrong with the list of members.
    broadcast(world, {}, root, members, hash_in(signature_of(group), static_cast<uint64_t>(total_bytes(group))));
    // Deciding takes all ranks; before that, some of them stage.
    DeviceLevels* levels = all || cards.decided() ? cards.levels(group[0].device()) : nullptr;
    for_each_batch(group, [&](const Views& views) {
      if (levels) return broadcast_batch(views, *levels, root, members);
      const at::Tensor host = on_host(views, /*filled=*/!receiver);
      broadcast_(host, comm, root, ranks);
      if (receiver) unpack(views, host);
    });
  });
  if (receiver) bump_versions(tensors);
}

// By the network the whole vector is reduced as allreduce_ does it, since the order of sums depends on what it reduces.
void reduce_on_cards(const at::Tensor& vector, const Comm& comm, Cards& cards, at::IntArrayRef ends,
                     at::IntArrayRef homes, Reduction reduction) {
  Communicator& world = *comm->communicator;
  check_ends(ends, homes, vector.numel(), world.size());
  uint64_t parts = kHashSeed;
  for (size_t i = 0; i < ends.size(); ++i) parts = hash_in(hash_in(parts, ends[i]), homes[i]);
  agree_on(world, Operation::reduce, vector, reduction, parts);
  DeviceLevels* levels = network_for(cards, vector, reduction);
  int64_t begin = 0;
  for_each_batch(vector, [&](const Views& views) {
    const int64_t end = begin + views[0].numel();
    const std::vector<int64_t> inside = within(ends, begin, end);
    at::Tensor sums;
    if (levels) {
      sums = reduced_by_network(views, world.size(), *levels, reduction);
    } else {
      sums = on_host(views);
      reduce_(sums, comm, inside, homes, reduction);
    }
    take_own(vector, sums, begin, inside, homes, world.rank());
    begin = end;
  });
  bump_versions(vector);
}

namespace {

/// Whatever comes through the dispatcher.
void check(at::TensorList tensors, const char* operation) {
  check_one_device(tensors, operation);
  for (const at::Tensor& tensor : tensors) check_dense(tensor, operation);
}

void allreduce_kernel(at::TensorList tensors, const Comm& comm, int64_t reduction) {
  const at::NoGradGuard no_grad;
  check(tensors, "allreduce_");
  allreduce_on_cards(tensors, comm, comm->cards, reduction_of(reduction, "allreduce_"));
}

void broadcast_kernel(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members) {
  const at::NoGradGuard no_grad;
  check(tensors, "broadcast_");
  const std::vector<int> ranks(members.begin(), members.end());
  broadcast_on_cards(tensors, comm, comm->cards, static_cast<int>(root), ranks);
}

void reduce_kernel(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef homes,
                   int64_t reduction) {
  const at::NoGradGuard no_grad;
  check(vector, "reduce_");
  reduce_on_cards(vector, comm, comm->cards, ends, homes, reduction_of(reduction, "reduce_"));
}

}  // namespace

void add_card_operators(torch::Library& library) {
  library.impl("allreduce_", allreduce_kernel);
  library.impl("broadcast_", broadcast_kernel);
  library.impl("reduce_", reduce_kernel);
}

}  // namespace spillway::ddl
