// Tables of papers on data parallelism.
#include "benchmarks/reproduce/published.h"
#include "benchmarks/reproduce/published_runs.h"
#include "core/error.h"
#include "ddl/allreduce/cost_model.h"

namespace spillway::runtime {
namespace {

/// The published efficiency of a number of V100s.
struct Efficiency {
  const char* shape;  // ClusterShape::parse()
  int world;
  const char* row;  // of the published table
};

/// Returns the efficiencies beside those of such a training, which is data-parallel.
std::vector<PublishedFigure> efficiencies(const TrainOptions& options, const PublishedTable& published,
                                          const char* column, const std::vector<Efficiency>& rows) {
  PlannedCluster one = v100s("", 1);
  const double alone = unlimited(one, options).seconds;
  std::vector<PublishedFigure> figures;
  for (const Efficiency& row : rows) {
    PlannedCluster cluster = v100s(row.shape, row.world);
    figures.push_back({str("efficiency of ", row.world, " GPUs"), "%", published.at(row.row, column),
                       100 * alone / unlimited(cluster, options).seconds});
  }
  return figures;
}

Reproduction lms_ddl() {
  Reproduction table{.name = "lms-ddl",
                     .source =
                         "Matzek et al., Data-parallel distributed training of very large models beyond GPU capacity, "
                         "2018: an epoch of a 3D U-Net on 1, 4, 8 and 16 V100s"};
  table.figures = efficiencies(volume(144), {"LMSDDL", "3.1, fig 3"}, "efficiency (derived)",
                               {{"4", 4, "4 GPUs"}, {"4x2", 8, "8 GPUs"}, {"4x4", 16, "16 GPUs"}});
  table.assumptions = {kVolumes, "four GPUs a host, 12.5 GB/s between hosts for each",
                       "cases that do not divide by the ranks are not counted", kRates, kOurs};
  return table;
}

Reproduction ddl_table1() {
  Reproduction table{.name = "ddl-table1", .source = "PowerAI DDL, table 1: efficiency of data parallelism"};
  table.figures = efficiencies(resnet50(), {"LMSDDL", "table 1"}, "scaling to 1 GPU",
                               {{"2", 2, "2 GPUs, 1 nodes"},
                                {"4", 4, "4 GPUs, 1 nodes"},
                                {"4x2", 8, "8 GPUs, 2 nodes"},
                                {"4x4", 16, "16 GPUs, 4 nodes"}});
  table.assumptions = {
      "only the efficiencies are at hand: 2, 4, 8 and 16 GPUs and ResNet-50 with 32 images a GPU are assumed",
      "V100s, four a host, 12.5 GB/s between hosts for each",
      "no costs that grow with the number of GPUs give the published rise from 4 to 8", kRates, kOurs};
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
  table.figures.push_back({"speed beside one ring over all GPUs", "×",
                           PublishedTable("LMSDDL", "2.1, fig 1").at("DDL against ncclAllReduce", "faster"),
                           ddl::predict_seconds(one_ring, kBytes / 4, ddl::Element::float32, ring) / by_levels});
  table.assumptions = {"100 MB, 40 GB/s within a host, 12.5 GB/s between hosts",
                       "NCCL of that time: one ring, in chunks of 1 MiB"};
  return table;
}

}  // namespace

std::vector<NamedReproduction> allreduce_reproductions() {
  return {{"lms-ddl", lms_ddl}, {"ddl-table1", ddl_table1}, {"ddl-nccl", ddl_nccl}};
}

}  // namespace spillway::runtime
