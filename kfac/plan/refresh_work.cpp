#include "kfac/plan/refresh_work.h"

#include <algorithm>

#include "core/error.h"

namespace spillway::kfac {
namespace {

using What = RefreshWork::What;

bool share_a_layer(const RefreshWork& a, const RefreshWork& b) {
  return std::find_first_of(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end()) != a.layers.end();
}

/// True for the last piece of a group's renewal, and for every piece of another kind.
bool is_last(const std::vector<RefreshWork>& all, size_t piece) {
  if (all[piece].what != What::renew || piece + 1 == all.size()) return true;
  return all[piece + 1].what != What::renew || all[piece + 1].piece == 0;
}

}  // namespace

std::string describe(const RefreshWork& work) {
  switch (work.what) {
    case What::statistics:
      return str("statistics of layer ", work.index, ", micro-batch ", work.micro_batch);
    case What::average:
      return str("average of group ", work.index);
    case What::renew:
      return str("renewal of group ", work.index, ", piece ", work.piece);
    case What::share:
      return str("inverse of layer ", work.index);
  }
  return "";
}

std::vector<size_t> needs_of(const std::vector<RefreshWork>& all, size_t piece, int64_t world) {
  const RefreshWork& work = all[piece];
  if (work.what == What::renew && work.piece > 0) return {piece - 1};
  const auto is_needed = [&](size_t k) {
    const RefreshWork& other = all[k];
    if (work.what == What::statistics)
      return other.what == work.what && other.index == work.index && other.micro_batch + 1 == work.micro_batch;
    if (static_cast<int>(other.what) + 1 != static_cast<int>(work.what) || !is_last(all, k)) return false;
    return (world > 1 && work.what != What::average) || share_a_layer(work, other);
  };
  std::vector<size_t> needs;
  for (size_t k = 0; k < piece; ++k)
    if (is_needed(k)) needs.push_back(k);
  return needs;
}

}  // namespace spillway::kfac
