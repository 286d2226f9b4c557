#include "kfac/make_setup.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "kfac/comm/agreed_options.h"
#include "kfac/inverse/background_solver.h"

namespace spillway::kfac {
namespace {

void check_layers(const std::vector<Layer>& layers, const KfacOptions& options, int64_t world) {
  for (const auto& [shape, weight, bias] : layers) {
    TORCH_CHECK(weight.device() == layers.front().weight.device(), "[kfac] layer ", shape.name, " is on ",
                weight.device(), ", ", layers.front().shape.name, " on ", layers.front().weight.device(),
                ": one device is served");
    TORCH_CHECK(world == 1 || weight.scalar_type() == at::kFloat, "[kfac] layer ", shape.name, " is ",
                weight.scalar_type(), "; ", world, " ranks exchange float32 only");
    for (const auto& factor : shape.factors())
      if (options.staleness > 0 && factor.side > BackgroundSolver::kMaxSide)
        throw BadRequest(str("[kfac] layer ", shape.name, " has a factor of side ", factor.side,
                             ", but with staleness sides go up to ", BackgroundSolver::kMaxSide,
                             "; lower max_linear_dim or set staleness to 0"));
  }
}

/// Returns each layer's place among the model's, or among the layers themselves where these are the model's.
std::vector<int64_t> numbers_in(const std::vector<LayerShape>& model, const std::vector<Layer>& layers) {
  std::vector<int64_t> numbers;
  for (const Layer& layer : layers) {
    const auto found = std::ranges::find(model, layer.shape.name, &LayerShape::name);
    TORCH_CHECK(model.empty() || found != model.end(), "[kfac] layer ", layer.shape.name, " is none of the model's ",
                model.size(), " layers");
    numbers.push_back(model.empty() ? std::ssize(numbers) : found - model.begin());
  }
  return numbers;
}

}  // namespace

Setup make_setup(const LayerFinder& find, KfacOptions options, ddl::Comm comm, const ModelStages& stages) {
  Setup setup{.options = std::move(options), .exchange = RankExchange(std::move(comm))};
  setup.exchange.check_together([&] {
    setup.options.validate();
    auto found = find(setup.options);
    setup.layers = std::move(found.layers);
    setup.left_alone = std::move(found.left_alone);
    check_layers(setup.layers, setup.options, setup.exchange.world());
  });
  setup.numbers = numbers_in(stages.layers, setup.layers);
  setup.options = agreed_options(std::move(setup.options), setup.layers, setup.exchange);
  TORCH_CHECK(!setup.layers.empty(), "[kfac] no layer of the model can be preconditioned: ", setup.left_alone.size(),
              " modules were left alone");
  setup.assignments =
      assign_stage(shapes_of(setup.layers), stages.layers, setup.numbers, setup.exchange.world(), setup.options);
  for (size_t i = 0; i < setup.layers.size(); ++i)
    for (size_t f = 0; f < setup.assignments[i].owners.size(); ++f)
      if (setup.assignments[i].owners[f] == setup.rank()) setup.owned.push_back({i, f});
  const auto& curvature = setup.options.layer_curvature;
  TORCH_CHECK(stages.layers.empty() || stages.curvature.empty() == curvature.empty(),
              "[kfac] a stage has layer_curvature where the model has it: ", stages.curvature.size(),
              " layers have it");
  setup.cycle = curvature.empty() ? UpdateCycle(setup.layers.size()) : UpdateCycle(curvature);
  setup.cycle_of_model = stages.curvature.empty() ? setup.cycle : UpdateCycle(stages.curvature);
  setup.rows_of_stages = stages.all_rows;
  return setup;
}

}  // namespace spillway::kfac
