#include "runtime/report/page.h"

#include <algorithm>
#include <numeric>

#include "core/bytes.h"
#include "core/error.h"
#include "core/version.h"
#include "runtime/report/axis.h"
#include "runtime/report/curves.h"
#include "runtime/report/lanes.h"
#include "runtime/report/memory.h"
#include "runtime/report/paging.h"
#include "runtime/report/pipeline.h"
#include "runtime/report/style.h"
#include "runtime/report/tables.h"
#include "runtime/report/text.h"

namespace spillway::report {
namespace {

constexpr double kMemoryTop = 10, kMemoryBottom = 310, kLanesTop = 322;

std::string budget_of(const TrainResult& r) {
  return r.budget_bytes == kUnlimitedBytes ? "no budget" : "budget " + format_bytes(r.budget_bytes);
}

/// Returns a title such as `unet3d, 96×96×96, 2 ranks, budget 600 MiB`, not yet escaped.
std::string title_of(const TrainResult& r) {
  std::string title = r.options.model.name;
  if (r.shape[0] > 0) title += str(", ", r.shape[0], "×", r.shape[1], "×", r.shape[2]);
  if (r.image_edge > 0) title += str(", ", r.image_edge, "×", r.image_edge);
  if (r.sequence_length > 0) title += str(", ", counted(r.sequence_length, "token"));
  return str(title, ", ", counted(r.world_size, "rank"), ", ", budget_of(r));
}

std::string subtitle_of(const TrainResult& r) {
  std::string text = str(r.options.data.source, ", batch ", r.options.data.batch, " per rank");
  if (r.options.optimizer.accumulate > 1) text += str(" × ", r.options.optimizer.accumulate);
  if (r.options.model.filters > 0) text += str(", ", counted(r.options.model.filters, "filter"));
  return str(text, ", ", name(r.options.optimizer.kind), r.kfac ? " + K-FAC" : "", ", ",
             counted(std::ssize(r.losses), "step"), ", seed ", r.options.seed);
}

/// Returns the seconds that the time axis must hold, > 0.
double duration_of(const StepRecording& recording) {
  double last = recording.seconds;
  for (const MemorySample& sample : recording.memory) last = std::max(last, sample.seconds);
  for (const TraceEvent& event : recording.events) last = std::max(last, event.start_seconds + event.seconds);
  return last > 0 ? last : 1e-6;
}

/// Returns the number and the kind of the recorded step, not yet escaped.
std::string recorded_step(const TrainResult& r) {
  const size_t step = r.recording.step;
  std::string which = str("step ", r.resumed_from_step.value_or(0) + r.recording.step + 1);
  if (step < r.step_kinds.size() && !r.step_kinds[step].empty()) which += str(", ", r.step_kinds[step]);
  return which;
}

std::string step_heading(const TrainResult& r) {
  std::string heading = "One step from inside";
  if (r.recording.step < 0) return heading;
  return str(heading, " <small>", escape(recorded_step(r)), r.world_size > 1 ? ", rank 0" : "", "</small>");
}

std::string step_caption(const TrainResult& r) {
  const MemorySample* highest = highest_sample(r.recording);
  if (!highest) return "<p>The memory of this step was not sampled.</p>\n";
  const int64_t most = std::accumulate(highest->bytes.begin(), highest->bytes.end(), int64_t{0});
  return str("<p>Bytes held after each operator; inside one there can be more. The highest of ",
             counted(std::ssize(r.recording.memory), "sample"), " is ", format_bytes(most), ", ",
             format_seconds(highest->seconds), " into the step; the legend gives the bytes of that instant. ",
             "Faint bars are many short events. Hover for names and times.</p>\n");
}

/// Draws memory above lanes, on one time axis.
std::string draw_step(const TrainResult& r) {
  std::string out = str("<section><h2>", step_heading(r), "</h2>\n");
  if (r.recording.memory.empty() && r.recording.events.empty()) return out + "<p>No step was recorded.</p></section>\n";
  const double lanes_bottom = kLanesTop + lanes_height(lanes_of(r.recording.events).size());
  const Axis time{0, duration_of(r.recording), kTimelineLeft, kTimelineRight};
  const Grid memory{kTimelineLeft, kTimelineRight, kMemoryTop, kMemoryBottom};
  const Grid lanes{kTimelineLeft, kTimelineRight, kLanesTop, lanes_bottom};
  const Grid both{kTimelineLeft, kTimelineRight, kMemoryTop, lanes_bottom + 4};
  out += draw_memory_legend(r.recording);
  out += str("<div class=\"wide\"><svg class=\"step\" viewBox=\"0 0 ", kTimelineWidth, " ", decimal(lanes_bottom + 26),
             "\" role=\"img\" aria-label=\"Memory by category and lanes of one step\">\n");
  out += draw_columns(both, time, second_ticks(time.high, 8));
  out += draw_memory(r, memory, time);
  out += draw_lanes(r.recording.events, lanes, time);
  return out + "</svg></div>\n" + step_caption(r) + "</section>\n";
}

std::string draw_header(const TrainResult& r) {
  std::string out = str("<header><h1>", escape(title_of(r)), "</h1>\n<p>", escape(subtitle_of(r)), "</p>\n");
  if (r.interrupted)
    out += str("<p class=\"warn\">Interrupted after ", counted(std::ssize(r.losses), "step"), ".</p>\n");
  return out + "</header>\n";
}

}  // namespace

std::string draw_page(const TrainResult& r, const std::vector<NamedResult>& others) {
  std::string out = str(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n",
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Spillway: ",
      escape(title_of(r)), "</title>\n<style>", kStyle);
  for (size_t c = 0; c < kCategoryCount; ++c) {
    const std::string_view category = name(static_cast<Category>(c));
    out += str(".c-", category, " { fill: var(--", category, "); background: var(--", category, "); }\n");
  }
  for (size_t w = 0; w < kPipelineWorkCount; ++w) {
    const std::string_view work = name(static_cast<PipelineWork>(w));
    out += str(".k-", work, " { fill: var(--", work, "); background: var(--", work, "); }\n");
  }
  out += "</style>\n</head>\n<body>\n<main>\n";
  out += draw_header(r) + draw_headline(r, others) + draw_step(r);
  if (r.pipeline) out += draw_pipeline(*r.pipeline, recorded_step(r));
  out += str("<div class=\"two\">\n", draw_losses(r, others), draw_metric(r, others), "</div>\n");
  if (!others.empty())  // steps of other optimizers take other times
    out += str("<div class=\"two\">\n", draw_losses(r, others, Over::seconds), draw_metric(r, others, Over::seconds),
               "</div>\n");
  out += draw_summary(r, others);
  if (r.paging) out += draw_paging(*r.paging, r.budget_bytes);
  out += str("<div class=\"two\">\n", draw_operators(r.recording), r.kfac ? draw_kfac(*r.kfac) : "", "</div>\n");
  if (r.allreduce) out += draw_allreduce(*r.allreduce);
  return out + str("<footer>Spillway ", kVersion,
                   ". 1 GiB is 2<sup>30</sup> bytes. trace.json, beside this page, opens in ",
                   "Perfetto and chrome://tracing.</footer>\n</main>\n</body>\n</html>\n");
}

}  // namespace spillway::report
