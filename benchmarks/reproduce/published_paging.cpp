// Tables of papers on volumes that do not fit a GPU.
#include "benchmarks/reproduce/published.h"
#include "benchmarks/reproduce/published_runs.h"
#include "core/bytes.h"
#include "core/error.h"
#include "runtime/dry_runs/make_planner.h"

namespace spillway::runtime {
namespace {

/// Returns a V100 of 16 GB with copies of such a rate each way.
PlannedCluster v100(double bytes_per_second, int devices_per_link = 1) {
  DeviceProfile profile = built_in_profile("v100");
  profile.copies.out_bytes_per_second = profile.copies.in_bytes_per_second = bytes_per_second;
  ClusterShape shape = ClusterShape::parse("", 1);
  shape.devices_per_link = devices_per_link;
  return {profile, shape, nullptr};
}

/// Returns the per cent by which a step on such a V100 takes longer than without a budget.
double overhead_in_16_gb(const TrainOptions& options, double bytes_per_second, int devices_per_link = 1) {
  PlannedCluster cluster = v100(bytes_per_second, devices_per_link);
  RunPlanner planner = make_planner(options, cluster);
  const RunPlan limited = planner.plan(cluster.profile().memory_bytes), whole = planner.plan(kUnlimitedBytes);
  if (!limited.is_feasible()) throw BadRequest("[reproduce] the step does not fit 16 GB");
  const double seconds = whole.best().forecast.seconds, more = limited.best().forecast.seconds - seconds;
  return more > 1e-9 * seconds ? 100 * more / seconds : 0;
}

Reproduction lms_192() {
  Reproduction table{.name = "lms-192",
                     .source =
                         "Matzek et al., Data-parallel distributed training of very large models beyond GPU capacity, "
                         "2018: 3D U-Net, 144³ to 192³ on a 16 GB V100 with "
                         "NVLink to the processor"};
  table.figures.push_back(
      {"overhead of 192³ in 16 GB (at most)", "%",
       PublishedTable("LMSDDL", "3").at("3-D U-Net", "overhead of LMS at 2.4 times the voxels (192^3)"),
       overhead_in_16_gb(volume(192), 75e9)});
  table.assumptions = {kVolumes, "75 GB/s each way", kRates, kOurs};
  return table;
}

Reproduction lms_pcie() {
  Reproduction table{.name = "lms-pcie",
                     .source =
                         "Matzek et al., Data-parallel distributed training of very large models beyond GPU capacity, "
                         "2018: the same on PCIe"};
  const auto slowdown = [](double bytes_per_second, int devices_per_link) {
    return 1 + overhead_in_16_gb(volume(192), bytes_per_second, devices_per_link) / 100;
  };
  const double nvlink = slowdown(75e9, 1);
  table.figures = {
      {"time on PCIe to that on NVLink", "×",
       PublishedTable("LMSDDL", "3, fig 2a").at("3-D U-Net", "time of one MRI on PCIe to NVLink"),
       slowdown(12e9, 1) / nvlink},
      {"the same with two GPUs on one bus", "×",
       PublishedTable("LMSDDL", "3, fig 2b").at("3-D U-Net", "training time on PCIe to NVLink, two GPUs on one bus"),
       slowdown(12e9, 2) / nvlink}};
  table.assumptions = {kVolumes, "12 GB/s each way, and half of that where two GPUs share the bus",
                       "LMS copies when a tensor is needed, Spillway ahead of it", kRates, kOurs};
  return table;
}

Reproduction bp_lms() {
  Reproduction table{.name = "bp-lms",
                     .source =
                         "Large Model Support on an encoder–decoder for seismic volumes: 96³, where 64³ is the largest "
                         "volume without it"};
  TrainOptions options;
  options.model.name = "bp3d";
  options.data.source = "synthetic:96";
  options.data.batch = 8;
  constexpr double kNvlink = 75e9;
  PlannedCluster cluster = v100(kNvlink);
  const int64_t peak = unlimited(cluster, options).peak_bytes;
  table.figures.push_back(
      {"more time of 96³ by paging in 16 GB", "%",
       PublishedTable("LMSDDL", "4.3")
           .at("BP seismic model", "more time an epoch of the 96^3 model with LMS than of the 64^3 model without"),
       overhead_in_16_gb(options, kNvlink)});
  table.assumptions = {
      "only the published number is at hand: that it is of a V100 of 16 GB is assumed",
      str("128 channels, eight volumes a step: Spillway's step takes ", format_bytes(peak), " without a budget"),
      "75 GB/s each way", kRates, kOurs};
  return table;
}

}  // namespace

std::vector<NamedReproduction> paging_reproductions() {
  return {{"lms-192", lms_192}, {"lms-pcie", lms_pcie}, {"bp-lms", bp_lms}};
}

}  // namespace spillway::runtime
