#include "kfac/comm/agreed_options.h"

#include <bit>
#include <string_view>
#include <utility>

#include "core/hash.h"
#include "ddl/comm/agreement.h"
#include "kfac/inverse/measure_decompositions.h"
#include "kfac/plan/place_factors.h"
#include "kfac/plan/strategy_choice.h"

namespace spillway::kfac {
namespace {

uint64_t hash_text(uint64_t hash, std::string_view text) {
  for (char letter : text) hash = hash_in(hash, static_cast<unsigned char>(letter));
  return hash;
}

uint64_t hash_of(const std::vector<LayerShape>& layers) {
  uint64_t hash = hash_in(kHashSeed, layers.size());
  for (const auto& layer : layers) {
    hash = hash_text(hash, layer.name);
    hash = hash_in(hash, layer.kind);
    for (int64_t size : {layer.out, layer.in, layer.groups, int64_t{layer.bias}, int64_t{layer.separable},
                         layer.input_blocks, layer.output_blocks})
      hash = hash_in(hash, size);
    for (int64_t size : layer.kernel) hash = hash_in(hash, size);
  }
  return hash;
}

uint64_t hash_of(const KfacOptions& options) {
  uint64_t hash = hash_in(kHashSeed, options.strategy);
  hash = hash_in(hash, std::bit_cast<uint64_t>(options.grad_worker_frac));
  for (double share : options.layer_grad_worker_fracs) hash = hash_in(hash, std::bit_cast<uint64_t>(share));
  hash = hash_in(hash, options.placement);
  hash = hash_in(hash, options.overlap_factors);
  hash = hash_in(hash, std::bit_cast<uint64_t>(options.warm_start));
  hash = hash_in(hash_in(hash_in(hash, options.staleness), options.curvature_delay), options.panel_columns);
  hash = hash_in(hash, options.batch_elements.value_or(-1));
  hash = hash_in(hash_in(hash, options.precompute_outer), options.method);
  hash = hash_in(hash_in(hash, options.convention), options.storage);
  hash = hash_in(hash_in(hash, options.damping_scope_in_use()), options.burn_in);
  hash = hash_text(hash_text(hash, name(options.factor_samples)), name(options.rank_in_use()));
  for (const auto& [layer, samples, rank, interval, slot] : options.layer_curvature)
    hash = hash_in(hash_in(hash_text(hash_text(hash, name(samples)), name(rank)), interval), slot);
  hash = hash_in(hash, options.seed);
  const auto first = options.at(0), later = options.in_long_run();
  for (double number :
       {options.decay, first.lr, first.kl_clip, first.factor_interval, first.inverse_interval, later.factor_interval,
        later.inverse_interval, first.relative_damping, first.damping.value_or(-1), options.norm_clip_in_use()})
    hash = hash_in(hash, std::bit_cast<uint64_t>(number));
  return hash_in(hash, options.factor_dtype);
}

}  // namespace

KfacOptions with_agreed_seconds(KfacOptions options, const std::vector<Layer>& layers, const RankExchange& exchange) {
  if (options.placement != Placement::measured || layers.empty()) return options;
  auto& seconds = options.decomposition_seconds;
  if (exchange.rank() != 0) {
    seconds = [](int64_t, int64_t) { return 0.0; };  // only rank 0's function counts
  } else if (!seconds) {
    const auto costs = measure_decompositions(state_options(layers.front().weight), options.method);
    seconds = [costs](int64_t side, int64_t count) { return costs.decomposition_seconds(side, count); };
  }
  const auto shapes = shapes_of(layers);
  auto table = exchange.gather(seconds_table(shapes, seconds));
  table.resize(table.size() / exchange.world());
  seconds = seconds_from(shapes, std::move(table));
  return options;
}

KfacOptions agreed_options(KfacOptions options, const std::vector<Layer>& layers, const RankExchange& exchange) {
  const auto shapes = shapes_of(layers);
  exchange.require_same(hash_of(shapes), "layers");
  exchange.require_same(
      hash_of(options),
      "a choice (strategy, grad_worker_frac, placement, factor_dtype, overlap, storage, method, convention, "
      "warm_start, staleness, batch_elements, factor_samples, eigen_rank, layer_curvature, an interval, burn_in, "
      "decay, damping, "
      "damping_scope, lr, kl_clip or norm_clip)");
  options = with_agreed_seconds(std::move(options), layers, exchange);
  if (options.strategy == Strategy::automatic)
    options = with(options, choose_strategy(shapes, exchange.world(), options));
  return options;
}

}  // namespace spillway::kfac
