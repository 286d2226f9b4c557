// Writes pages with the longest names and the most rows that reports have, and pages with the least, for the test that
// looks at pages in a browser.
//     report_sample_pages DIR
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numbers>
#include <string>

#include "runtime/pictures/session_page.h"
#include "runtime/report/report.h"
#include "tests/runtime/report/sample_pipeline.h"
#include "tests/runtime/report/sample_report.h"

namespace spillway {
namespace {

const std::string kLongOperator = "aten::_scaled_dot_product_flash_attention_for_cpu_backward.with_a_mask";
const std::string kUnbrokenName = "mylibrary::anOperatorWhoseAuthorWroteItsNameWithoutOneSingleUnderscoreInIt";

/// Returns a step with bytes in all categories, and events long and short on six lanes.
StepRecording crowded_step() {
  StepRecording recording;
  recording.step = 123'456;
  recording.seconds = 1;
  for (int i = 0; i < 300; ++i) {
    BytesByCategory bytes;
    for (size_t c = 0; c < kCategoryCount; ++c) bytes[c] = (1 + (i * 37 + static_cast<int>(c) * 11) % 100) * kMiB;
    recording.memory.push_back({i / 300., bytes});
  }
  const char* lanes[] = {"compute", "copy out", "copy in", "communication", "disk writes and reads", "K-FAC's thread"};
  for (const char* lane : lanes)
    for (int i = 0; i < 40; ++i)
      recording.events.push_back({i % 3   ? "aten::mul_"
                                  : i % 2 ? kLongOperator
                                          : kUnbrokenName,
                                  lane, i / 40.,
                                  i % 4 == 0   ? 0.024
                                  : i % 4 == 1 ? 0.2
                                               : 1e-4,
                                  1023 * kMiB});
  for (int i = 0; i < 12; ++i)
    recording.events.push_back({str("aten::native_batch_norm_backward_", i), "compute", i / 12., 0.08, 0});
  return recording;
}

PagingSummary crowded_paging() {
  PagingSummary paging = *small_run().paging;
  paging.kind = "factor+decompose+precondition";
  for (int i = 0; i < 30; ++i) {
    paging.absences.push_back({kLongOperator, "aten::native_batch_norm_backward", kUnbrokenName, Category::eigenbases,
                               1023 * kMiB, 0.999, i % 2 == 0});
    paging.footprints.push_back({i % 2 ? kLongOperator : kUnbrokenName, 1023 * kMiB, 1023 * kMiB, 1023 * kMiB});
  }
  paging.exposed_seconds = 0.2;
  return paging;
}

/// Returns a run of many steps, whose loss swings between 1e-5 and 1 and ends with no number.
TrainResult long_run(int seed) {
  TrainResult r = small_run();
  r.losses.clear(), r.step_seconds.clear();
  for (int i = 0; i < 2000; ++i) {
    r.losses.push_back(std::exp(-5 - 5 * std::sin(i * std::numbers::pi / (100 + seed))));
    r.step_seconds.push_back(0.5);
  }
  r.losses.back() = std::numeric_limits<double>::quiet_NaN();
  r.metric = {{0, -0.000012345}, {1000, -0.0000123456}, {2000, -0.0000123451}};
  r.metric_name = "mean Dice over labels";
  r.options.optimizer.rest.emplace();
  r.parameters = 1'234'567'890, r.rss_peak_bytes = r.host_peak_bytes = 1023 * kMiB,
  r.bytes_out = r.bytes_in = 1LL << 41;
  r.exposed_copy_seconds = 900, r.replayed_operators = 1'234'567;
  r.observed->floor_operator = kLongOperator;
  return r;
}

TrainResult crowded_run() {
  TrainResult r = long_run(0);
  r.options.data.source = "/home/somebody/with/a/long/name/of/a/folder/in/which/there/are/cases/of/the/BraTS/layout";
  r.recording = crowded_step();
  r.paging = crowded_paging();
  r.interrupted = true;
  r.kfac->strategy = "hybrid";
  r.kfac->reason = "budget 600 MiB; hybrid f=0.5, lpt-time, gradients in 16.0 MiB: 193 ms a step; next the same choice";
  r.kfac->seconds.factor_compute = 12.5, r.kfac->seconds.decompose = 99;
  r.kfac->seconds_by_rank = {r.kfac->seconds, {.factor_compute = 11, .decompose = 3}};
  r.kfac->counters.dropped_factors = r.kfac->counters.failed_decompositions = 12;
  r.allreduce->explanation =
      "allreduce of 1013 KiB over 16 ranks (4x4)\n  level 1, 4 groups of 4 ranks: direct; a rank sends 1013 KiB: at "
      "least "
      "90.5 \u00B5s, predicted 91.8 \u00B5s, waited 23.96 ms (0 % of the bound), and then some more";
  r.pipeline = pipeline_of(16, 40);
  r.pipeline->ranks[0].stages = {0, 16, 32, 48, 64};
  return r;
}

void write_runs(const std::filesystem::path& dir) {
  std::vector<NamedResult> others;
  for (const char* name : {"unlimited", "adam@0.000123", "soap", "lamb@0.000123", "muon@0.000123", "adamw@0.000123"})
    others.push_back({name, long_run(static_cast<int>(others.size()))});
  write_report(dir / "crowded", crowded_run(), others);
  TrainResult single = crowded_run();
  for (size_t i = 0; i < 4; ++i) others.push_back({str("adam@0.00", i), long_run(static_cast<int>(10 * i))});
  write_report(dir / "many_runs", single, others);
  single.pipeline.reset();
  write_report(dir / "one_run", single, {});
  write_report(dir / "same_runs", single, {{"the same again", single}});
  write_report(dir / "no_steps", TrainResult(), {});
}

void write_sessions(const std::filesystem::path& dir) {
  SessionReport session;
  session.device = "cuda:0", session.budget_bytes = 600 * kMiB, session.peak_bytes = 599 * kMiB;
  session.floor_bytes = 512 * kMiB, session.floor_operator = kLongOperator;
  session.host_peak_bytes = session.disk_peak_bytes = 1023 * kMiB, session.replays = 1'234'567;
  session.kind = "a_kind_of_step_with_a_long_name";
  session.seconds_by_kind = {{session.kind, std::vector<double>(1000, 0.999)}, {kUnbrokenName, {0.999}}};
  session.recording = crowded_step();
  session.paging = crowded_paging();
  write_report(dir / "session", session);
  write_report(dir / "session_without_steps", SessionReport());
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "Usage: %s DIR\n", argv[0]);
    return 2;
  }
  spillway::write_runs(argv[1]);
  spillway::write_sessions(argv[1]);
}
