#include "runtime/dry_runs/reproduce.h"

#include <algorithm>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "ddl/allreduce/cost_model.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/place_factors.h"
#include "runtime/dry_runs/dry_steps.h"
#include "runtime/dry_runs/make_plan.h"
#include "runtime/dry_runs/reproduce_pipelines.h"
#include "runtime/planning/resnet_layers.h"

namespace spillway::runtime {
namespace {

constexpr const char* kRates =
    "the V100's kernels reach 60 % of its data sheet's peak in products, 80 % of its memory bandwidth";
constexpr const char* kOurs =
    "the steps are Spillway's: its K-FAC, its schedule and its allreduce, not the paper's program";

/// A V100 in a host of IBM's AC922: NVLink joins GPUs and processors, which have 340 GB/s of memory, and four GPUs
/// share two EDR adapters.
DeviceProfile v100_with_nvlink() {
  DeviceProfile profile = built_in_profile("v100");
  profile.copies.out_bytes_per_second = profile.copies.in_bytes_per_second = 75e9;
  profile.host_bytes_per_second = 340e9;
  return profile;
}

// --- K-FAC's memory and balance -------------------------------------------------------------------------------------

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
  struct Row {
    int depth;
    double least, most;
  };
  Reproduction table{.name = "kaisa-table5",
                     .source = "Pauloski et al., KAISA, SC'21, table 5: memory of K-FAC on 64 GPUs"};
  for (const Row& row : {Row{18, 384, 806}, {50, 634, 1846}, {101, 1150, 2442}, {152, 1584, 2472}}) {
    const auto [factors, gradients] = elements_of(resnet_layers(row.depth));
    // Every rank holds the factors, and a share f of the eigenbases and outer products, all in float32.
    const auto megabytes = [&, f = factors, g = gradients](double share) { return 4e-6 * (f + share * (f + g)); };
    table.figures.push_back({str("ResNet-", row.depth, ", f = 1/64"), "MB", row.least, megabytes(1.0 / 64)});
    table.figures.push_back({str("ResNet-", row.depth, ", f = 1"), "MB", row.most, megabytes(1)});
  }
  table.assumptions = {
      "full matrices in float32, as the paper's program holds them; Spillway's own take half of the factors' bytes",
      "the maxima of ResNet-50 and ResNet-152 are not explained by these bytes"};
  return table;
}

Reproduction sc20_balance() {
  Reproduction table{
      .name = "sc20-balance",
      .source = "Pauloski et al., SC'20: loads of round-robin placement, Σ side² of a GPU's factors, ResNet-50"};
  const auto layers = resnet_layers(50);
  const auto sizes = kfac::decomposition_costs(layers, kfac::Placement::lpt_memory);
  struct Row {
    int64_t world;
    double least, most;
  };
  for (const Row& row : {Row{16, 1.46e6, 2.83e7}, {64, 1.64e4, 2.26e7}}) {
    const bool by_layer = row.world <= std::ssize(layers);
    const auto ranks = kfac::place_factors(sizes, row.world, kfac::Placement::round_robin, by_layer);
    std::vector<double> load(row.world);
    for (size_t l = 0; l < ranks.size(); ++l)
      for (size_t f = 0; f < ranks[l].size(); ++f) load[ranks[l][f]] += sizes[l][f];
    table.figures.push_back(
        {str(row.world, " GPUs, smallest load"), "", row.least, *std::min_element(load.begin(), load.end())});
    table.figures.push_back(
        {str(row.world, " GPUs, largest load"), "", row.most, *std::max_element(load.begin(), load.end())});
  }
  table.assumptions = {
      "GPUs take whole layers in turn where there are enough layers, and single factors where there are not"};
  return table;
}

// --- K-FAC's time ---------------------------------------------------------------------------------------------------

/// ResNet-50 on ImageNet with K-FAC as published: exact factors and full bases.
TrainOptions resnet50(double factor_interval, double inverse_interval) {
  TrainOptions options;
  options.model.name = "resnet50";
  options.data.source = "synthetic:224";
  options.data.batch = 32;
  options.optimizer.kind = OptimizerKind::sgd;
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

/// Returns the seconds of a step without a budget.
double seconds_of(PlannedCluster& cluster, const TrainOptions& options, const kfac::StrategyChoice& workers = {}) {
  swap::ScheduleInputs inputs = cluster.schedule_inputs(options);
  inputs.budget_bytes = kUnlimitedBytes;
  return forecast(cluster.steps(options, preconditioned_layers(options), {.workers = workers}), inputs).seconds;
}

PlannedCluster v100s(const char* shape, int world) {
  return {v100_with_nvlink(), ClusterShape::parse(shape, world), nullptr};
}

Reproduction kaisa_fig6() {
  Reproduction table{.name = "kaisa-fig6",
                     .source = "Pauloski et al., KAISA, SC'21, fig. 6: ResNet-50 on 64 V100s, f = 1/64 to 1"};
  PlannedCluster cluster = v100s("4x16", 64);
  const TrainOptions options = resnet50(50, 500);
  const double few = seconds_of(cluster, options, {kfac::Strategy::hybrid, 1.0 / 64});
  const double all = seconds_of(cluster, options, {kfac::Strategy::hybrid, 1});
  table.figures.push_back({"time of a step that f = 1 saves", "%", 24.4, 100 * (1 - all / few)});
  table.assumptions = {"batch 32 a GPU, factors every 50 steps and decompositions every 500, float32", kRates, kOurs};
  return table;
}

Reproduction sc20_table3() {
  Reproduction table{
      .name = "sc20-table3",
      .source = "Pauloski et al., SC'20, table III: training ResNet-50, decompositions every 100, 500 and 1000 steps"};
  constexpr double kSgdMinutes = 178, kEpochs = 55.0 / 90;
  PlannedCluster cluster = v100s("4x8", 32);
  TrainOptions first_order = resnet50(1, 1);
  first_order.kfac.enabled = false;
  const double sgd = seconds_of(cluster, first_order);
  for (const auto& [interval, minutes] : {std::pair{100.0, 152.0}, {500.0, 128.0}, {1000.0, 124.0}}) {
    const double step = seconds_of(cluster, resnet50(interval / 10, interval), {kfac::Strategy::comm_opt, 1});
    table.figures.push_back(
        {str("decompositions every ", interval, " steps"), "min", minutes, kSgdMinutes * kEpochs * step / sgd});
  }
  table.assumptions = {
      "32 GPUs, from 178 minutes of SGD for 90 epochs; 55 epochs with K-FAC, as its time by epoch implies",
      "factors ten times as often as decompositions", kRates, kOurs};
  return table;
}

Reproduction dpkfac_table4() {
  Reproduction table{
      .name = "dpkfac-table4",
      .source = "Zhang et al., DP-KFAC, 2022, table 4: ResNet-50, factors and decompositions in every step"};
  PlannedCluster cluster = v100s("4x16", 64);
  const TrainOptions options = resnet50(1, 1);
  const double dp = seconds_of(cluster, options, {kfac::Strategy::dp, 1.0 / 64});
  table.figures.push_back(
      {"KAISA, f = 1, time to DP-KFAC's", "×", 1.85, seconds_of(cluster, options, {kfac::Strategy::comm_opt, 1}) / dp});
  table.figures.push_back({"KAISA, f = 1/64, time to DP-KFAC's", "×", 1.62,
                           seconds_of(cluster, options, {kfac::Strategy::mem_opt, 1.0 / 64}) / dp});
  table.figures.push_back({"SPD-KFAC, time to DP-KFAC's", "×", 1.51, std::nullopt});
  table.assumptions = {"64 V100s; the paper's GPUs are others", "SPD-KFAC is not one of Spillway's strategies", kRates,
                       kOurs};
  return table;
}

// --- paging ---------------------------------------------------------------------------------------------------------

TrainOptions volume(int64_t edge) {
  TrainOptions options;
  options.model.name = "unet3d";
  options.model.filters = 48;
  options.data.source = str("synthetic:", edge);
  return options;
}

/// Returns how many times as long a step of 192³ takes in 16 GB as without a budget, with copies of such a rate.
double slowdown_in_16_gb(double bytes_per_second, int devices_per_link = 1) {
  DeviceProfile profile = built_in_profile("v100");
  profile.copies.out_bytes_per_second = profile.copies.in_bytes_per_second = bytes_per_second;
  ClusterShape shape = ClusterShape::parse("", 1);
  shape.devices_per_link = devices_per_link;
  PlannedCluster cluster(profile, shape, nullptr);
  RunPlanner planner = make_planner(volume(192), cluster);
  const RunPlan limited = planner.plan(profile.memory_bytes), unlimited = planner.plan(kUnlimitedBytes);
  if (!limited.is_feasible()) throw BadRequest("[reproduce] 192³ does not fit 16 GB");
  return limited.best().forecast.seconds / unlimited.best().forecast.seconds;
}

constexpr const char* kVolumes = "a 3D U-Net of 48 filters, of which 144³ is the largest volume without paging";

Reproduction lms_192() {
  Reproduction table{.name = "lms-192",
                     .source =
                         "Matzek et al., Data-parallel distributed training of very large models beyond GPU capacity, "
                         "2018: 3D U-Net, 144³ to 192³ on a 16 GB V100 with "
                         "NVLink to the processor"};
  table.figures.push_back({"overhead of 192³ in 16 GB (at most)", "%", 25, 100 * (slowdown_in_16_gb(75e9) - 1)});
  table.assumptions = {kVolumes, "75 GB/s each way", kRates, kOurs};
  return table;
}

Reproduction lms_pcie() {
  Reproduction table{.name = "lms-pcie",
                     .source =
                         "Matzek et al., Data-parallel distributed training of very large models beyond GPU capacity, "
                         "2018: the same on PCIe"};
  const double nvlink = slowdown_in_16_gb(75e9);
  table.figures.push_back({"time on PCIe to that on NVLink", "×", 2.47, slowdown_in_16_gb(12e9) / nvlink});
  table.figures.push_back({"the same with two GPUs on one bus", "×", 3.5, slowdown_in_16_gb(12e9, 2) / nvlink});
  table.assumptions = {kVolumes, "12 GB/s each way, and half of that where two GPUs share the bus",
                       "LMS copies when a tensor is needed, Spillway ahead of it", kRates, kOurs};
  return table;
}

// --- data parallelism -----------------------------------------------------------------------------------------------

Reproduction lms_ddl() {
  Reproduction table{.name = "lms-ddl",
                     .source =
                         "Matzek et al., Data-parallel distributed training of very large models beyond GPU capacity, "
                         "2018: an epoch of a 3D U-Net on 1, 4, 8 and 16 V100s"};
  PlannedCluster one = v100s("", 1);
  const double alone = seconds_of(one, volume(144));
  const struct {
    const char* shape;
    int world;
    double percent;
  } rows[]{{"4", 4, 98.3}, {"4x2", 8, 97.0}, {"4x4", 16, 92.2}};
  for (const auto& row : rows) {
    PlannedCluster cluster = v100s(row.shape, row.world);
    table.figures.push_back(
        {str("efficiency of ", row.world, " GPUs"), "%", row.percent, 100 * alone / seconds_of(cluster, volume(144))});
  }
  table.assumptions = {kVolumes, "four GPUs a host, 12.5 GB/s between hosts for each",
                       "cases that do not divide by the ranks are not counted", kRates, kOurs};
  return table;
}

Reproduction ddl_nccl() {
  Reproduction table{.name = "ddl-nccl",
                     .source = "Cho et al., PowerAI DDL, 2017: allreduce on 2 × 4 P100s beside NCCL's ring"};
  constexpr int64_t kBytes = 100'000'000;
  const ddl::Costs links{.levels = {{.latency_seconds = 10e-6, .message_seconds = 1e-6, .bytes_per_second = 40e9},
                                    {.latency_seconds = 20e-6, .message_seconds = 2e-6, .bytes_per_second = 12.5e9}},
                         .reduce_seconds_per_byte = 5e-12};
  const ddl::Levels levels = ddl::Levels::parse("4x2", 8);
  const double by_levels =
      ddl::predict_seconds(ddl::choose(levels, kBytes, links, true), kBytes / 4, ddl::Element::float32, links);
  // One ring over all GPUs: its two links between hosts carry what every link carries.
  const ddl::Levels flat(8);
  const ddl::Costs ring{.levels = {links.levels[1]}, .reduce_seconds_per_byte = links.reduce_seconds_per_byte};
  const ddl::Choice one_ring{ddl::Plan(flat, ddl::Algorithm::ring), {.chunk_bytes = 1 << 20}};
  table.figures.push_back({"speed beside one ring over all GPUs", "×", 1.6,
                           ddl::predict_seconds(one_ring, kBytes / 4, ddl::Element::float32, ring) / by_levels});
  table.assumptions = {"100 MB, 40 GB/s within a host, 12.5 GB/s between hosts",
                       "NCCL of that time: one ring, in chunks of 1 MiB"};
  return table;
}

constexpr std::pair<std::string_view, Reproduction (*)()> kReproductions[]{{"kaisa-table5", kaisa_table5},
                                                                           {"kaisa-fig6", kaisa_fig6},
                                                                           {"sc20-balance", sc20_balance},
                                                                           {"sc20-table3", sc20_table3},
                                                                           {"dpkfac-table4", dpkfac_table4},
                                                                           {"lms-192", lms_192},
                                                                           {"lms-pcie", lms_pcie},
                                                                           {"lms-ddl", lms_ddl},
                                                                           {"ddl-nccl", ddl_nccl}};

}  // namespace

std::vector<std::string> reproductions() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kReproductions) names.emplace_back(name);
  for (std::string& name : pipeline_reproductions()) names.push_back(std::move(name));
  return names;
}

Reproduction reproduce(std::string_view name, const BlockTimesSource& blocks) {
  for (const auto& [own, make] : kReproductions) {
    if (own != name) continue;
    if (!blocks.is_own()) return make();
    throw BadRequest(
        str("'", name, "' takes no block times; those of --times are for names that begin with pipefisher-"));
  }
  if (std::optional<Reproduction> pipeline = reproduce_pipeline(name, blocks)) return *std::move(pipeline);
  std::string known;
  for (const std::string& own : reproductions()) known += str(known.empty() ? "" : ", ", own);
  throw BadRequest(str("there is nothing to reproduce called '", name, "'; there are ", known));
}

}  // namespace spillway::runtime
