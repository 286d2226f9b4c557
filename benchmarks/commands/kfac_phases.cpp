#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "benchmarks/commands/commands.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "core/ledger.h"
#include "core/median.h"
#include "kfac/factors/factors.h"
#include "kfac/factors/layers.h"
#include "kfac/factors/patches.h"
#include "kfac/inverse/eigenbasis.h"
#include "kfac/inverse/precondition.h"
#include "runtime/models/resnet50.h"
#include "swap/session.h"

namespace spillway::tools {
using namespace runtime;
namespace {

using kfac::Geometry, kfac::Lattice;
using nlohmann::json;

const Geometry kCube{{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
const Lattice kWhole = Lattice::whole(3);
constexpr int64_t kWorkspaceBytes = int64_t{16} << 20;  // KfacOptions' default

struct Timing {
  double seconds = 0;
  double flops = 0;
  int64_t workspace_bytes = 0;  // bytes beyond those held before
};

/// The Session in which the parts run, and the device that they run on.
struct Bench {
  Session& session;
  c10::Device device;

  at::Tensor randn(at::IntArrayRef sizes) const { return at::randn(sizes, at::TensorOptions(device)); }
  at::Tensor zeros(at::IntArrayRef sizes) const { return at::zeros(sizes, at::TensorOptions(device)); }
  /// Waits until a GPU has done its work.
  void settle() const {
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
};

/// Times `work`, which returns its floating-point operations.
Timing time_once(const Bench& bench, const std::function<double()>& work) {
  Session& session = bench.session;
  session.reset_peak();
  const int64_t before = session.ledger().used_bytes();
  bench.settle();
  const auto start = Clock::now();
  const double flops = work();
  bench.settle();
  const double seconds = seconds_since(start);
  return {seconds, flops, session.stats().peak_bytes - before};
}

/// Times the works one after the other, `repeats` times, and once before, which does not count.
std::vector<Timing> time_all(const Bench& bench, const std::vector<std::function<double()>>& works, int repeats) {
  std::vector<std::vector<double>> seconds(works.size());
  std::vector<Timing> timings(works.size());
  for (int i = 0; i <= repeats; ++i)
    for (size_t w = 0; w < works.size(); ++w) {
      const Timing timing = time_once(bench, works[w]);
      timings[w] = timing;
      if (i > 0) seconds[w].push_back(timing.seconds);
    }
  for (size_t w = 0; w < works.size(); ++w) timings[w].seconds = median(seconds[w]);
  return timings;
}

json row(const std::string& phase, const Timing& timing, json more = json::object()) {
  const double gflops = timing.flops / timing.seconds / 1e9;
  std::printf("%-44s %10.2f ms %9.1f GFLOP/s %10s", phase.c_str(), timing.seconds * 1e3, gflops,
              format_bytes(timing.workspace_bytes).c_str());
  for (const auto& [key, value] : more.items())
    if (value.is_number()) std::printf("  %s %.3g", key.c_str(), value.get<double>());
  std::printf("\n");
  json out{{"phase", phase}, {"seconds", timing.seconds}, {"gflops", gflops}, {"bytes", timing.workspace_bytes}};
  out.update(more);
  return out;
}

/// Adds A of `x` to `sum` through patches, in parts of the same workspace. Returns the floating-point operations.
double through_patches(const at::Tensor& sum, const at::Tensor& x) {
  const int64_t side = x.size(1) * kCube.kernel_volume();
  double flops = 0;
  for (const auto& box : kfac::boxes(kfac::output_places(x, kCube, kWhole), kWorkspaceBytes / (side * 4))) {
    const auto patches = kfac::patch_matrix(x, kCube, kWhole, box, at::kFloat).flatten(0, 1);
    sum.addmm_(patches, patches.t());
    flops += 2 * static_cast<double>(side) * static_cast<double>(patches.numel());
  }
  return flops;
}

void add_capture_rows(const Bench& bench, int repeats, json& rows) {
  for (const auto& [channels, edge] : {std::pair<int64_t, int64_t>{16, 64}, {64, 24}}) {
    const auto x = bench.randn({1, channels, edge, edge, edge});
    const int64_t side = channels * kCube.kernel_volume();
    const auto full = bench.zeros({1, side, side}), c = bench.zeros({1, channels, channels}),
               k = bench.zeros({1, 27, 27}), g = bench.zeros({1, channels, channels});
    const auto output = [&] { return kfac::add_output_products(g, x, kWorkspaceBytes); };
    const auto timings =
        time_all(bench,
                 {[&] { return output() + through_patches(full.select(0, 0), x); },
                  [&] { return output() + kfac::add_input_products(full, x, &kCube, kWhole, kWorkspaceBytes); },
                  [&] {
                    return output() + kfac::add_channel_products(c, x, kCube, kWhole, kWorkspaceBytes) +
                           kfac::add_offset_products(k, x, kCube, kWhole, kWorkspaceBytes);
                  }},
                 repeats);
    const std::string what = str(channels, " channels at ", edge, "^3, ");
    const auto activation = static_cast<double>(x.nbytes());
    rows.push_back(row(what + "factors through patches", timings[0]));
    rows.push_back(row(what + "without patches", timings[1],
                       {{"speedup", timings[0].seconds / timings[1].seconds},
                        {"workspace_per_activation", static_cast<double>(timings[1].workspace_bytes) / activation}}));
    rows.push_back(row(what + "separable", timings[2],
                       {{"speedup_over_full", timings[1].seconds / timings[2].seconds},
                        {"workspace_per_activation", static_cast<double>(timings[2].workspace_bytes) / activation}}));
  }
}

/// Returns random matrices and positive eigenvalues, because only their size matters here.
kfac::LayerInverse inverse_of(const Bench& bench, const kfac::LayerShape& shape) {
  auto inverse = kfac::LayerInverse::identity(shape, at::TensorOptions(bench.device).dtype(at::kFloat));
  for (const auto& tensor : inverse.held) tensor.uniform_(0.1, 1.1).div_(static_cast<double>(tensor.size(-1)));
  return inverse;
}

void add(Timing& sum, const Timing& part, int64_t times) {
  sum.seconds += static_cast<double>(times) * part.seconds;
  sum.flops += static_cast<double>(times) * part.flops;
  sum.workspace_bytes = std::max(sum.workspace_bytes, part.workspace_bytes);
}

/// Times four ways to precondition a layer: in eigenbases, with their products held, with inverses, and the matrix
/// products of the first way alone.
std::vector<Timing> time_preconditioning(const Bench& bench, const kfac::Layer& layer, int repeats) {
  constexpr kfac::InverseForm kForms[] = {{}, {kfac::Method::eigen, true}, {kfac::Method::pi}};
  const kfac::LayerGradient gradient{at::randn_like(layer.weight),
                                     layer.shape.bias ? at::randn_like(layer.bias) : at::Tensor()};
  std::vector<std::function<double()>> ways;
  for (const auto& form : kForms) {
    auto shape = layer.shape;
    shape.inverse = form;
    ways.emplace_back([&gradient, shape, inverse = inverse_of(bench, shape)] {
      (void)kfac::precondition(shape, gradient, inverse, kfac::scales_of(shape, inverse, {}));
      return kfac::precondition_flops(shape);
    });
  }
  const auto factors = layer.shape.factors();
  const auto a = bench.randn({layer.shape.groups, factors[0].side, factors[0].side}),
             g = bench.randn({layer.shape.groups, factors[1].side, factors[1].side}),
             matrix = bench.randn({layer.shape.groups, factors[1].side, factors[0].side});
  ways.emplace_back([&] {
    (void)g.bmm(g.bmm(matrix).bmm(a)).bmm(a);
    return kfac::precondition_flops(layer.shape);
  });
  return time_all(bench, ways, repeats);
}

/// Adds rows for preconditioning all of ResNet-50. Layers of one shape cost the same, so one of them stands for all.
void add_precondition_rows(const Bench& bench, int repeats, json& rows) {
  ResNet50 model{ResNet50Options{}};
  model->to(bench.device);
  const auto layers = kfac::find_layers(*model, {.conv_factors = kfac::ConvFactors::full}).layers;
  std::map<std::vector<int64_t>, std::vector<const kfac::Layer*>> by_shape;
  for (const auto& layer : layers) by_shape[layer.weight.sizes().vec()].push_back(&layer);
  Timing sums[4];
  for (const auto& [_, equal] : by_shape) {
    const auto timings = time_preconditioning(bench, *equal.front(), repeats);
    for (size_t way = 0; way < 4; ++way) add(sums[way], timings[way], static_cast<int64_t>(equal.size()));
  }
  const auto& [eigen, outer, inverses, products] = sums;
  rows.push_back(row("ResNet-50, the products alone", products));
  rows.push_back(
      row("ResNet-50, preconditioning", eigen, {{"share_of_product_rate", products.seconds / eigen.seconds}}));
  rows.push_back(row("ResNet-50, with 1/(v_G v_A' + damping) held", outer,
                     {{"share_of_eigen_seconds", outer.seconds / eigen.seconds}}));
  rows.push_back(
      row("ResNet-50, with inverses", inverses, {{"share_of_eigen_seconds", inverses.seconds / eigen.seconds}}));
}

/// Adds rows for decompositions: one of each large side, and batches of small ones.
void add_decomposition_rows(const Bench& bench, int repeats, json& rows) {
  for (const auto& [count, side] : {std::pair<int64_t, int64_t>{64, 64}, {16, 256}, {1, 512}, {1, 1152}, {1, 2304}}) {
    const auto x = bench.randn({count, side, 2 * side});
    const auto factors = x.bmm(x.transpose(1, 2)).div_(2 * static_cast<double>(side));
    const double flops = 9.0 * static_cast<double>(count * side * side * side);
    const auto timings = time_all(bench, {[&] { return (void)kfac::eigh(factors), flops; }}, repeats);
    rows.push_back(row(str("decomposition of ", count, " matrices of ", side, " x ", side), timings[0]));
  }
}

}  // namespace

json bench_kfac_parts(const std::string& device, int repeats) {
  at::NoGradGuard no_grad;
  at::manual_seed(0);
  Session session({.device = device, .split_bytes = kUnlimitedBytes});
  const Bench bench{session, open_device(device).torch_device()};
  json rows = json::array();
  const auto a = bench.randn({2048, 2048}), b = bench.randn({2048, 2048});
  const auto gemm = time_all(bench, {[&] {
                               (void)a.mm(b);
                               return 2.0 * 2048 * 2048 * 2048;
                             }},
                             repeats);
  rows.push_back(row("product of 2048 x 2048 matrices", gemm[0]));
  add_capture_rows(bench, repeats, rows);
  add_precondition_rows(bench, repeats, rows);
  add_decomposition_rows(bench, repeats, rows);
  return rows;
}

}  // namespace spillway::tools
