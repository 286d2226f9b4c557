// Tables of papers on K-FAC over ranks.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "benchmarks/reproduce/published.h"
#include "benchmarks/reproduce/published_runs.h"
#include "core/error.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/factor_traffic.h"
#include "kfac/plan/place_factors.h"
#include "kfac/plan/strategy_choice.h"
#include "runtime/planning/device_rates.h"
#include "runtime/planning/resnet_layers.h"

namespace spillway::runtime {
namespace {

// --- memory and balance ---------------------------------------------------------------------------------------------

/// Returns Σ side² over all factors, and the elements of all gradients.
std::pair<double, double> elements_of(const std::vector<kfac::LayerShape>& layers) {
  double factors = 0, gradients = 0;
  for (const kfac::LayerShape& layer : layers) {
    factors += static_cast<double>(kfac::factor_elements(layer));
    gradients += static_cast<double>(layer.gradient_elements());
  }
  return {factors, gradients};
}

Reproduction kaisa_table5() {
  Reproduction table{.name = "kaisa-table5",
                     .source = "Pauloski et al., KAISA, SC'21, table 5: memory of K-FAC on 64 GPUs"};
  const PublishedTable published("KAISA", "table 5");
  for (const int depth : {18, 50, 101, 152}) {
    const auto [factors, gradients] = elements_of(resnet_layers(depth));
    const std::string model = str("ResNet-", depth);
    // Every rank holds the factors, and a share f of the eigenbases and outer products, all in float32.
    const auto megabytes = [&, f = factors, g = gradients](double share) { return 4e-6 * (f + share * (f + g)); };
    table.figures.push_back(
        {model + ", f = 1/64", "MB", published.at(model, "K-FAC overhead min (derived)"), megabytes(1.0 / 64)});
    table.figures.push_back(
        {model + ", f = 1", "MB", published.at(model, "K-FAC overhead max (derived)"), megabytes(1)});
  }
  table.assumptions = {
      "full matrices in float32, as the paper's program holds them; Spillway's own take half of the factors' bytes",
      "the maxima of ResNet-50 and ResNet-152 are not explained by these bytes"};
  return table;
}

double most_of(const std::vector<double>& loads) {
  return *std::max_element(loads.begin(), loads.end());
}

/// Returns each GPU's sum of values by layer and factor.
std::vector<double> loads(const std::vector<std::vector<double>>& values,
                          const std::vector<std::vector<int64_t>>& rank_of, int64_t world) {
  std::vector<double> sums(world);
  for (size_t l = 0; l < rank_of.size(); ++l)
    for (size_t f = 0; f < rank_of[l].size(); ++f) sums[rank_of[l][f]] += values[l][f];
  return sums;
}

Reproduction sc20_balance() {
  Reproduction table{
      .name = "sc20-balance",
      .source = "Pauloski et al., SC'20: loads of round-robin placement, Σ side² of a GPU's factors, ResNet-50"};
  const auto layers = resnet_layers(50);
  const auto sizes = kfac::decomposition_costs(layers, kfac::Placement::lpt_memory);
  const PublishedTable published("SC20", "VI.C.4");
  for (const int64_t world : {16, 64}) {
    const bool by_layer = world <= std::ssize(layers);
    const auto ranks = kfac::place_factors(sizes, world, kfac::Placement::round_robin, by_layer);
    const std::vector<double> load = loads(sizes, ranks, world);
    const auto add = [&, gpus = str(world, " GPUs")](const char* which, double value) {
      table.figures.push_back({str(gpus, ", ", which, " load"), "",
                               published.at("ResNet-50, " + gpus, str(which, " load (factor elements of a worker)")),
                               value});
    };
    add("smallest", *std::min_element(load.begin(), load.end()));
    add("largest", most_of(load));
  }
  table.assumptions = {
      "GPUs take whole layers in turn where there are enough layers, and single factors where there are not"};
  return table;
}

Reproduction dpkfac_table1() {
  Reproduction table{.name = "dpkfac-table1",
                     .source =
                         "Zhang et al., DP-KFAC, 2022, table 1: how a GPU's work, memory and messages grow. Here "
                         "they are counted for ResNet-50 on 64 GPUs"};
  struct Row {
    const char* name;
    kfac::StrategyChoice workers;
  };
  constexpr int64_t kWorld = 64;
  const auto layers = resnet_layers(50);
  const auto cubes = kfac::decomposition_costs(layers, kfac::Placement::lpt_time);
  for (const Row& row : {Row{"KAISA, f = 1", {kfac::Strategy::comm_opt, 1}},
                         {"KAISA, f = 1/64", {kfac::Strategy::mem_opt, 1.0 / kWorld}},
                         {"DP-KFAC", {kfac::Strategy::dp, 1.0 / kWorld}}}) {
    const auto assigned = kfac::assign(layers, kWorld, kfac::with({}, row.workers));
    std::vector<std::vector<int64_t>> owners;
    for (const kfac::Assignment& layer : assigned) owners.push_back(layer.owners);
    int64_t held = 0, received = 0;
    for (const kfac::FactorBytes& bytes : kfac::bytes_per_rank(layers, assigned)) held = std::max(held, bytes.held());
    for (const kfac::FactorTraffic& bytes : kfac::traffic_per_rank(layers, assigned))
      received = std::max(received, bytes.factors + bytes.eigenbases + bytes.gradients);
    const auto add = [&](const char* what, const char* unit, double value) {
      table.figures.push_back({str(row.name, ", ", what), unit, std::nullopt, value});
    };
    add("Σ side³ of decompositions", "", most_of(loads(cubes, owners, kWorld)));
    add("factors and eigenbases", "MB", 1e-6 * static_cast<double>(held));
    add("received in a step that does all", "MB", 1e-6 * static_cast<double>(received));
  }
  table.assumptions = {"the table has orders of growth and no numbers",
                       "each figure is the busiest GPU's, by Spillway's placement, which sends and keeps triangles"};
  return table;
}

// --- time -----------------------------------------------------------------------------------------------------------

/// ResNet-50 on ImageNet with K-FAC as published: exact factors and full bases.
TrainOptions with_kfac(double factor_interval, double inverse_interval) {
  TrainOptions options = resnet50();
  options.kfac.enabled = true;
  options.kfac.choose_grad_worker_frac = false;
  kfac::KfacOptions& kfac = options.kfac.preconditioner;
  kfac.factor_samples = kfac::FactorSamples::exact();
  kfac.eigen_rank = kfac::EigenRank::full();
  kfac.conv_factors = kfac::ConvFactors::full;
  kfac.factor_interval = factor_interval;
  kfac.inverse_interval = inverse_interval;
  return options;
}

Reproduction kaisa_fig6() {
  Reproduction table{.name = "kaisa-fig6",
                     .source = "Pauloski et al., KAISA, SC'21, fig. 6: ResNet-50 on 64 V100s, f = 1/64 to 1"};
  PlannedCluster cluster = v100s("4x16", 64);
  const TrainOptions options = with_kfac(50, 500);
  const double published = PublishedTable("KAISA", "5.5").at("ResNet-50", "faster step from f=1/64 to f=1 (fig 6)");
  const double few = unlimited(cluster, options, {kfac::Strategy::hybrid, 1.0 / 64}).seconds;
  const double all = unlimited(cluster, options, {kfac::Strategy::hybrid, 1}).seconds;
  table.figures.push_back({"time of a step that f = 1 saves", "%", published, 100 * (1 - all / few)});
  table.assumptions = {"batch 32 a GPU, factors every 50 steps and decompositions every 500, float32", kRates, kOurs};
  return table;
}

Reproduction sc20_table3() {
  Reproduction table{
      .name = "sc20-table3",
      .source = "Pauloski et al., SC'20, table III: training ResNet-50, decompositions every 100, 500 and 1000 steps"};
  const PublishedTable published("SC20", "table III");
  const double sgd_minutes = published.at("ResNet-50", "training time, SGD");
  constexpr double kEpochs = 55.0 / 90;
  PlannedCluster cluster = v100s("4x8", 32);
  const double sgd = unlimited(cluster, resnet50()).seconds;
  for (const double interval : {100.0, 500.0, 1000.0}) {
    const double step = unlimited(cluster, with_kfac(interval / 10, interval), {kfac::Strategy::comm_opt, 1}).seconds;
    table.figures.push_back({str("decompositions every ", interval, " steps"), "min",
                             published.at("ResNet-50", str("training time, interval ", interval)),
                             sgd_minutes * kEpochs * step / sgd});
  }
  table.assumptions = {
      "32 GPUs, from 178 minutes of SGD for 90 epochs; 55 epochs with K-FAC, as its time by epoch implies",
      "factors ten times as often as decompositions", kRates, kOurs};
  return table;
}

Reproduction sc20_table5() {
  Reproduction table{.name = "sc20-table5",
                     .source = "Pauloski et al., SC'20, table V: decompositions on 16, 32 and 64 GPUs"};
  const DeviceRates kernels = v100_with_nvlink().kernels;
  const auto seconds = [&](int64_t side, int64_t count) {
    return static_cast<double>(count) * decomposition_seconds(kernels, side);
  };
  for (int depth : {50, 101, 152}) {
    const auto layers = resnet_layers(depth);
    const auto times = kfac::decomposition_costs(layers, kfac::Placement::measured, seconds);
    for (int64_t world : {16, 32, 64}) {
      const bool by_layer = world <= std::ssize(layers);
      const auto ranks = kfac::place_factors(times, world, kfac::Placement::round_robin, by_layer);
      table.figures.push_back({str("ResNet-", depth, ", ", world, " GPUs, decompositions of the busiest one"), "ms",
                               std::nullopt, 1e3 * most_of(loads(times, ranks, world))});
    }
  }
  table.assumptions = {"the published times are not at hand",
                       "GPUs take whole layers in turn where there are enough layers, and single factors where not",
                       "times of decompositions by side are an H100's, 1.9 times as long"};
  return table;
}

Reproduction kaisa_table4() {
  Reproduction table{
      .name = "kaisa-table4",
      .source =
          "Pauloski et al., KAISA, SC'21, table 4: under a fixed memory, ResNet-50 on 64 V100s of 16 GB, "
          "and BERT-Large"};
  PlannedCluster cluster = v100s("4x16", 64);
  // A step's peak grows evenly with its batch.
  const auto largest_batch = [&](TrainOptions options, const kfac::StrategyChoice& workers) {
    constexpr int64_t kFew = 32, kMore = 64;
    const auto peak = [&](int64_t batch) {
      options.data.batch = batch;
      return static_cast<double>(unlimited(cluster, options, workers).peak_bytes);
    };
    const double few = peak(kFew), bytes_per_image = (peak(kMore) - few) / (kMore - kFew);
    return std::floor(kFew + (static_cast<double>(cluster.profile().memory_bytes) - few) / bytes_per_image);
  };
  const auto add = [&](const char* what, const TrainOptions& options, const kfac::StrategyChoice& workers) {
    table.figures.push_back(
        {str("largest batch of a GPU, ", what), "images", std::nullopt, largest_batch(options, workers)});
  };
  add("SGD", resnet50(), {});
  add("K-FAC, f = 1/64", with_kfac(50, 500), {kfac::Strategy::hybrid, 1.0 / 64});
  add("K-FAC, f = 1/2", with_kfac(50, 500), {kfac::Strategy::hybrid, 0.5});
  add("K-FAC, f = 1", with_kfac(50, 500), {kfac::Strategy::hybrid, 1});
  const PublishedTable published("KAISA", "abstract");
  constexpr const char* kSaves = "time to converge that K-FAC saves, fixed memory";
  table.figures.push_back(
      {"time to converge that K-FAC saves, ResNet-50", "%", published.at("ResNet-50", kSaves), std::nullopt});
  table.figures.push_back(
      {"time to converge that K-FAC saves, BERT-Large", "%", published.at("BERT-Large phase 2", kSaves), std::nullopt});
  table.assumptions = {"the published batches are not at hand; the saved times are of the paper's abstract",
                       "no paging; float32; CUDA and its libraries take as much as on an H100",
                       "nothing here predicts in how many steps a training converges"};
  return table;
}

Reproduction dpkfac_table4() {
  Reproduction table{
      .name = "dpkfac-table4",
      .source = "Zhang et al., DP-KFAC, 2022, table 4: ResNet-50, factors and decompositions in every step"};
  PlannedCluster cluster = v100s("4x16", 64);
  const TrainOptions options = with_kfac(1, 1);
  const Forecast dp = unlimited(cluster, options, {kfac::Strategy::dp, 1.0 / 64});
  const Forecast all = unlimited(cluster, options, {kfac::Strategy::comm_opt, 1});
  const Forecast few = unlimited(cluster, options, {kfac::Strategy::mem_opt, 1.0 / 64});
  const auto memory = [&](const Forecast& run) {
    return static_cast<double>(run.peak_bytes) / static_cast<double>(dp.peak_bytes);
  };
  const auto published = [table4 = PublishedTable("DPKFAC", "table 4")](const char* method, const char* column) {
    const double ratio =
        table4.at("ResNet-50", str(method, ", ", column)) / table4.at("ResNet-50", str("DP-KFAC, ", column));
    return std::round(100 * ratio) / 100;  // as the paper has it
  };
  table.figures = {
      {"KAISA, f = 1, time to DP-KFAC's", "×", published("KAISA-CO", "iteration"), all.seconds / dp.seconds},
      {"KAISA, f = 1/64, time to DP-KFAC's", "×", published("KAISA-MO", "iteration"), few.seconds / dp.seconds},
      {"SPD-KFAC, time to DP-KFAC's", "×", published("SPD-KFAC", "iteration"), std::nullopt},
      {"KAISA, f = 1, memory to DP-KFAC's", "×", published("KAISA-CO", "memory"), memory(all)},
      {"KAISA, f = 1/64, memory to DP-KFAC's", "×", published("KAISA-MO", "memory"), memory(few)},
      {"SPD-KFAC, memory to DP-KFAC's", "×", published("SPD-KFAC", "memory"), std::nullopt}};
  table.assumptions = {"64 V100s, 32 images each; the paper's GPUs are others",
                       "SPD-KFAC is not one of Spillway's strategies", kRates, kOurs};
  return table;
}

}  // namespace

std::vector<NamedReproduction> kfac_reproductions() {
  return {{"kaisa-table4", kaisa_table4},   {"kaisa-table5", kaisa_table5},  {"kaisa-fig6", kaisa_fig6},
          {"sc20-balance", sc20_balance},   {"sc20-table3", sc20_table3},    {"sc20-table5", sc20_table5},
          {"dpkfac-table1", dpkfac_table1}, {"dpkfac-table4", dpkfac_table4}};
}

}  // namespace spillway::runtime
