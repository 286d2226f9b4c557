#include "kfac/agreed.h"

#include <bit>

#include "ddl/agreement.h"
#include "kfac/placement.h"
#include "kfac/strategy_choice.h"

namespace spillway::kfac {
namespace {

using ddl::hash_in;

uint64_t hash_of(const std::vector<LayerShape>& layers) {
  uint64_t hash = hash_in(ddl::kHashSeed, layers.size());
  for (const auto& layer : layers) {
    for (char letter : layer.name) hash = hash_in(hash, static_cast<unsigned char>(letter));
    hash = hash_in(hash, static_cast<uint64_t>(layer.kind));
    for (int64_t size : {layer.out, layer.in, layer.groups, int64_t{layer.bias}, int64_t{layer.separable}})
      hash = hash_in(hash, static_cast<uint64_t>(size));
    for (int64_t size : layer.kernel) hash = hash_in(hash, static_cast<uint64_t>(size));
  }
  return hash;
}

uint64_t hash_of(const KfacOptions& options) {
  uint64_t hash = hash_in(ddl::kHashSeed, static_cast<uint64_t>(options.strategy));
  hash = hash_in(hash, std::bit_cast<uint64_t>(options.grad_worker_frac));
  for (double share : options.layer_grad_worker_fracs) hash = hash_in(hash, std::bit_cast<uint64_t>(share));
  hash = hash_in(hash, static_cast<uint64_t>(options.placement));
  hash = hash_in(hash, options.overlap_factors);
  for (int choice :
       {int{options.precompute_outer}, static_cast<int>(options.method), static_cast<int>(options.convention)})
    hash = hash_in(hash, static_cast<uint64_t>(choice));
  return hash_in(hash, static_cast<uint64_t>(options.factor_dtype));
}

}  // namespace

KfacOptions agree_on(KfacOptions options, const std::vector<LayerShape>& layers, const Exchange& exchange) {
  exchange.require_alike(hash_of(layers), "layers");
  exchange.require_alike(
      hash_of(options),
      "a choice (strategy, grad_worker_frac, placement, factor_dtype, overlap, method or convention)");
  if (options.placement == Placement::measured)
    options.decomposition_seconds =
        seconds_from(layers, exchange.gather(seconds_table(layers, options.decomposition_seconds)).front());
  if (options.strategy == Strategy::automatic)
    options = with(options, choose_strategy(layers, exchange.world(), options));
  return options;
}

}  // namespace spillway::kfac
