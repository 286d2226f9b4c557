/// The published figures that dry runs and plans predict, and what their predictions have in common.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmarks/reproduce/reproduction.h"
#include "kfac/plan/strategy_choice.h"
#include "runtime/dry_runs/planned_cluster.h"
#include "runtime/options/train_options.h"
#include "runtime/planning/forecast.h"

namespace spillway::runtime {

/// A table's name, and the function that makes it.
using NamedReproduction = std::pair<std::string_view, Reproduction (*)()>;

/// Returns the tables of papers on K-FAC over ranks.
std::vector<NamedReproduction> kfac_reproductions();
/// Returns the tables of papers on volumes that do not fit a GPU.
std::vector<NamedReproduction> paging_reproductions();
/// Returns the tables of papers on data parallelism.
std::vector<NamedReproduction> allreduce_reproductions();

inline constexpr const char* kRates =
    "the V100's kernels reach 60 % of its data sheet's peak in products, 80 % of its memory bandwidth; times of the "
    "host "
    "and of decompositions follow an H100's";
inline constexpr const char* kOurs =
    "the steps are Spillway's: its K-FAC, its schedule and its allreduce, not the paper's program";
inline constexpr const char* kVolumes = "a 3D U-Net of 48 filters, of which 144³ is the largest volume without paging";

/// Returns a V100 in a host of IBM's AC922: NVLink joins GPUs and processors, which have 340 GB/s of memory, and four
/// GPUs share two EDR adapters.
DeviceProfile v100_with_nvlink();
/// Returns a world of these V100s, whose hosts are `shape` as ClusterShape::parse() takes it.
PlannedCluster v100s(std::string_view shape, int world);

/// Returns the options of a 3D U-Net of 48 filters on cubes of such an edge.
TrainOptions volume(int64_t edge);
/// Returns the options of ResNet-50 on ImageNet's images, by SGD with 32 images a GPU.
TrainOptions resnet50();

/// Returns the run without a budget, distributed so.
Forecast unlimited(PlannedCluster& cluster, const TrainOptions& options, const kfac::StrategyChoice& workers = {});

}  // namespace spillway::runtime
