#include "runtime/report/page.h"

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/pictures/memory.h"
#include "runtime/pictures/operators.h"
#include "runtime/pictures/page_frame.h"
#include "runtime/pictures/paging.h"
#include "runtime/pictures/step_picture.h"
#include "runtime/pictures/text.h"
#include "runtime/report/curves.h"
#include "runtime/report/pipeline.h"
#include "runtime/report/tables.h"

namespace spillway::report {
namespace {

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

/// Returns the number and the kind of the recorded step, not yet escaped.
std::string recorded_step(const TrainResult& r) {
  const size_t step = r.recording.step;
  std::string which = str("step ", r.resumed_from_step.value_or(0) + r.recording.step + 1);
  if (step < r.step_kinds.size() && !r.step_kinds[step].empty()) which += str(", ", r.step_kinds[step]);
  return which;
}

std::string step_note(const TrainResult& r) {
  if (r.recording.step < 0) return "";
  return recorded_step(r) + (r.world_size > 1 ? ", rank 0" : "");
}

MemoryLevels levels_of(const TrainResult& r) {
  return {.budget_bytes = r.budget_bytes, .unconstrained_bytes = r.observed ? r.observed->peak_bytes : 0};
}

std::string draw_header(const TrainResult& r) {
  std::string out = str("<header><h1>", escape(title_of(r)), "</h1>\n<p>", escape(subtitle_of(r)), "</p>\n");
  if (r.interrupted)
    out += str("<p class=\"warn\">Interrupted after ", counted(std::ssize(r.losses), "step"), ".</p>\n");
  return out + "</header>\n";
}

}  // namespace

std::string draw_page(const TrainResult& r, const std::vector<NamedResult>& others) {
  std::string css;
  for (size_t w = 0; w < kPipelineWorkCount; ++w) {
    const std::string_view work = name(static_cast<PipelineWork>(w));
    css += str(".k-", work, " { fill: var(--", work, "); background: var(--", work, "); }\n");
  }
  std::string out = open_page(title_of(r), css);
  out += draw_header(r) + draw_headline(r, others) + draw_step(r.recording, levels_of(r), step_note(r));
  if (r.pipeline) out += draw_pipeline(*r.pipeline, recorded_step(r));
  out += str("<div class=\"two\">\n", draw_losses(r, others), draw_metric(r, others), "</div>\n");
  if (!others.empty())  // steps of other optimizers take other times
    out += str("<div class=\"two\">\n", draw_losses(r, others, Over::seconds), draw_metric(r, others, Over::seconds),
               "</div>\n");
  out += draw_summary(r, others);
  if (r.paging) out += draw_paging(*r.paging, r.budget_bytes);
  out += str("<div class=\"two\">\n", draw_operators(r.recording), r.kfac ? draw_kfac(*r.kfac) : "", "</div>\n");
  if (r.allreduce) out += draw_allreduce(*r.allreduce);
  return out + close_page();
}

}  // namespace spillway::report
