#include "kfac/factors/weight_use.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace spillway::kfac {
namespace {

namespace ag = torch::autograd;

constexpr size_t kMaxChain = 16;
using Sizes = std::vector<int64_t>;

int64_t wrapped(int64_t dimension, int64_t rank) {
  return dimension < 0 ? dimension + rank : dimension;
}

/// Returns the place of a dimension after a view, which keeps those that the sizes before and behind it leave no
/// choice.
std::optional<int64_t> place_after_view(int64_t place, const Sizes& before, const Sizes& after) {
  const auto front = std::mismatch(before.begin(), before.end(), after.begin(), after.end()).first - before.begin();
  const auto back = std::mismatch(before.rbegin(), before.rend(), after.rbegin(), after.rend()).first - before.rbegin();
  if (place < front) return place;
  const int64_t from_end = std::ssize(before) - place;
  return from_end <= back ? std::optional(std::ssize(after) - from_end) : std::nullopt;
}

/// Returns the place of a dimension of `before` in the output of `node`, a view or a copy; nothing where it has none.
std::optional<int64_t> place_after(const ag::Node& node, int64_t place, const Sizes& before, const Sizes& after) {
  using namespace ag::generated;
  const auto rank = std::ssize(before);
  if (const auto* permute = dynamic_cast<const PermuteBackward0*>(&node)) {
    const auto at = std::ranges::find_if(permute->dims, [&](int64_t d) { return wrapped(d, rank) == place; });
    return at == permute->dims.end() ? std::nullopt : std::optional(at - permute->dims.begin());
  }
  if (dynamic_cast<const TBackward0*>(&node)) return rank == 2 ? 1 - place : place;
  if (const auto* transpose = dynamic_cast<const TransposeBackward0*>(&node)) {
    const int64_t one = wrapped(transpose->dim0, rank), other = wrapped(transpose->dim1, rank);
    return place == one ? other : place == other ? one : place;
  }
  if (const auto* unsqueeze = dynamic_cast<const UnsqueezeBackward0*>(&node))
    return place < wrapped(unsqueeze->dim, rank + 1) ? place : place + 1;
  if (dynamic_cast<const ExpandBackward0*>(&node)) return place + std::ssize(after) - rank;
  return place_after_view(place, before, after);
}

/// Follows a weight's dimensions through a function; returns false where one of them is lost.
bool follow(const ag::Node& node, Sizes after, WeightUse& use) {
  for (size_t k = 0; k < use.places.size(); ++k) {
    if (!use.places[k]) continue;
    use.places[k] = place_after(node, *use.places[k], use.sizes, after);
    if (!use.places[k] || after.at(*use.places[k]) != use.weight_sizes[k]) return false;
  }
  use.sizes = std::move(after);
  return true;
}

WeightUse whole(const at::Tensor& weight) {
  WeightUse use{.weight = weight.unsafeGetTensorImpl(), .weight_sizes = weight.sizes().vec(), .is_known = true};
  use.sizes = use.weight_sizes;
  for (int64_t k = 0; k < weight.dim(); ++k)
    use.places.push_back(weight.size(k) == 1 ? std::nullopt : std::optional(k));
  return use;
}

}  // namespace

bool WeightUse::has_matrix_at(int64_t rows, int64_t columns) const {
  if (!is_known || weight_sizes.size() < 2 || rows < 0 || columns < 0) return false;
  const std::array expected{rows, columns};
  for (size_t k = 0; k < places.size(); ++k) {
    if (k < 2 ? places[k].value_or(expected[k]) != expected[k] : places[k].has_value()) return false;
    if (k < 2 && sizes.at(expected[k]) != weight_sizes[k]) return false;
  }
  return true;
}

bool WeightUse::is_transposed_matrix() const {
  return has_matrix_at(std::ssize(sizes) - 1, std::ssize(sizes) - 2);
}

bool WeightUse::is_in_order() const {
  if (!is_known || sizes.size() < weight_sizes.size()) return false;
  for (size_t k = 0; k < sizes.size(); ++k)
    if (sizes[k] != (k < weight_sizes.size() ? weight_sizes[k] : 1)) return false;
  for (int64_t k = 0; k < std::ssize(places); ++k)
    if (places[k].value_or(k) != k) return false;
  return true;
}

bool passes_a_weight_on(std::string_view node) {
  constexpr std::array<std::string_view, 9> names{"TBackward0",      "TransposeBackward0",  "PermuteBackward0",
                                                  "ViewBackward0",   "UnsafeViewBackward0", "ToCopyBackward0",
                                                  "ExpandBackward0", "UnsqueezeBackward0",  "ReshapeAliasBackward0"};
  return std::find(names.begin(), names.end(), node) != names.end();
}

Sizes output_sizes(const ag::Edge& edge) {
  Sizes sizes;
  for (const auto& size : edge.function->input_metadata(edge.input_nr).shape_as_dim_vector())
    sizes.push_back(size.guard_int(__FILE__, __LINE__));
  return sizes;
}

WeightUse weight_behind(const ag::Edge& edge) {
  std::vector<ag::Edge> chain;
  ag::Edge at = edge;
  const ag::AccumulateGrad* leaf = nullptr;
  while (at.is_valid() && !(leaf = dynamic_cast<const ag::AccumulateGrad*>(at.function.get()))) {
    if (chain.size() == kMaxChain || !passes_a_weight_on(at.function->name())) return {};
    chain.push_back(at);
    at = at.function->next_edge(0);
  }
  if (!leaf) return {};
  WeightUse use = whole(leaf->variable);
  for (auto hop = chain.rbegin(); use.is_known && hop != chain.rend(); ++hop)
    use.is_known = follow(*hop->function, output_sizes(*hop), use);
  return use;
}

}  // namespace spillway::kfac
