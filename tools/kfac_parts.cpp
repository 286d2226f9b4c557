#include "tools/kfac_parts.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/bytes.h"
#include "core/error.h"
#include "kfac/factors.h"
#include "kfac/layers.h"
#include "kfac/patches.h"
#include "kfac/precondition.h"
#include "runtime/resnet50.h"
#include "swap/session.h"
#include "tools/worker.h"

namespace spillway::tools {
namespace {

using kfac::Geometry;
using nlohmann::json;

const Geometry kCube{{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
constexpr int64_t kWorkspaceBytes = int64_t{16} << 20;  // KfacOptions' default

struct Timing {
  double seconds = 0;
  double flops = 0;
  int64_t workspace_bytes = 0;  // beyond what was held before
};

/// `work` returns its floating-point operations.
Timing time_once(Session& session, const std::function<double()>& work) {
  session.reset_peak();
  const int64_t before = session.ledger().used_bytes();
  const auto start = std::chrono::steady_clock::now();
  const double flops = work();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {seconds, flops, session.stats().peak_bytes - before};
}

/// One after the other, `repeats` times and once before that does not count.
std::vector<Timing> time_all(Session& session, const std::vector<std::function<double()>>& works, int repeats) {
  std::vector<std::vector<double>> seconds(works.size());
  std::vector<Timing> timings(works.size());
  for (int i = 0; i <= repeats; ++i)
    for (size_t w = 0; w < works.size(); ++w) {
      const Timing timing = time_once(session, works[w]);
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

/// A of `x` through patches, in parts of the same workspace.
double through_patches(const at::Tensor& sum, const at::Tensor& x) {
  const int64_t side = x.size(1) * kCube.kernel_volume();
  double flops = 0;
  for (const auto& box : kfac::boxes(kfac::output_positions(x, kCube), kWorkspaceBytes / (side * 4))) {
    const auto patches = kfac::patch_matrix(x, kCube, box, at::kFloat).flatten(0, 1);
    sum.addmm_(patches, patches.t());
    flops += 2 * static_cast<double>(side) * static_cast<double>(patches.numel());
  }
  return flops;
}

void add_capture_rows(Session& session, int repeats, json& rows) {
  for (const auto& [channels, edge] : {std::pair<int64_t, int64_t>{16, 64}, {64, 24}}) {
    const auto x = at::randn({1, channels, edge, edge, edge});
    const int64_t side = channels * kCube.kernel_volume();
    const auto full = at::zeros({1, side, side}), c = at::zeros({1, channels, channels}), k = at::zeros({1, 27, 27}),
               g = at::zeros({1, channels, channels});
    const auto output = [&] { return kfac::add_output_products(g, x, kWorkspaceBytes); };
    const auto timings =
        time_all(session,
                 {[&] { return output() + through_patches(full.select(0, 0), x); },
                  [&] { return output() + kfac::add_input_products(full, x, &kCube, kWorkspaceBytes); },
                  [&] {
                    return output() + kfac::add_channel_products(c, x, kCube, kWorkspaceBytes) +
                           kfac::add_offset_products(k, x, kCube, kWorkspaceBytes);
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

/// Random orthogonal bases and positive eigenvalues: what matters here is their size.
std::vector<kfac::Eigenbasis> bases_of(const kfac::LayerShape& shape) {
  std::vector<kfac::Eigenbasis> bases;
  for (const auto& factor : shape.factors())
    bases.push_back({at::randn({shape.groups, factor.side, factor.side}) / static_cast<double>(factor.side),
                     at::rand({shape.groups, factor.side}) + 0.1});
  return bases;
}

/// Both share the machine's products; the second does nothing else.
void add_precondition_rows(Session& session, int repeats, json& rows) {
  const ResNet50 model{ResNet50Options{}};
  const auto layers = kfac::find_layers(*model, {.conv_factors = kfac::ConvFactors::full}).layers;
  Timing whole, products;
  for (const auto& layer : layers) {
    const kfac::LayerShape& shape = layer.shape;
    const auto bases = bases_of(shape);
    const kfac::LayerGradient gradient{at::randn_like(layer.weight),
                                       shape.bias ? at::randn_like(layer.bias) : at::Tensor()};
    const auto &a = bases.front().vectors, &g = bases.back().vectors;
    const auto matrix = at::randn({shape.groups, g.size(1), a.size(1)});
    const auto timings = time_all(session,
                                  {[&] {
                                     (void)kfac::precondition(shape, gradient, bases, {});
                                     return kfac::precondition_flops(shape);
                                   },
                                   [&] {
                                     (void)g.bmm(g.bmm(matrix).bmm(a)).bmm(a);
                                     return kfac::precondition_flops(shape);
                                   }},
                                  repeats);
    whole.seconds += timings[0].seconds;
    products.seconds += timings[1].seconds;
    whole.flops += timings[0].flops;
    products.flops += timings[1].flops;
    whole.workspace_bytes = std::max(whole.workspace_bytes, timings[0].workspace_bytes);
  }
  rows.push_back(row("ResNet-50, the products alone", products));
  rows.push_back(
      row("ResNet-50, preconditioning", whole, {{"share_of_product_rate", products.seconds / whole.seconds}}));
}

}  // namespace

json bench_kfac_parts(int repeats) {
  at::NoGradGuard no_grad;
  at::manual_seed(0);
  Session session({.split_bytes = kUnlimitedBytes});
  json rows = json::array();
  const auto a = at::randn({2048, 2048}), b = at::randn({2048, 2048});
  const auto gemm = time_all(session, {[&] {
                               (void)a.mm(b);
                               return 2.0 * 2048 * 2048 * 2048;
                             }},
                             repeats);
  rows.push_back(row("product of 2048 x 2048 matrices", gemm[0]));
  add_capture_rows(session, repeats, rows);
  add_precondition_rows(session, repeats, rows);
  return rows;
}

}  // namespace spillway::tools
