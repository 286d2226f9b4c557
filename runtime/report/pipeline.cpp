#include "runtime/report/pipeline.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "runtime/pictures/axis.h"
#include "runtime/pictures/lanes.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

constexpr size_t kMaxRanks = 16;
constexpr double kTop = 8;
constexpr double kRankHeight = 52, kMeasuredHeight = 20, kPlannedHeight = 17, kGap = 2;
constexpr double kGapped = 4;  // picture units: a wider block ends early, so that its neighbor can be told apart

using Spans = std::vector<PipelineSpan>;

/// Returns the kind as the legend shows it.
std::string label(PipelineWork work) {
  return work == PipelineWork::exchange ? "exchange of gradients, with waits" : describe(PipelineSpan{.work = work});
}

/// Returns the seconds of work, by kind.
PipelineSeconds seconds_of(const Spans& spans) {
  PipelineSeconds seconds;
  for (const PipelineSpan& span : spans) seconds[span.work] += span.end - span.begin;
  return seconds;
}

double busy_seconds(const Spans& spans) {
  double busy = 0;
  for (const PipelineSpan& span : spans)
    if (span.work != PipelineWork::exchange) busy += span.end - span.begin;
  return busy;
}

/// Returns the number of ranks that are drawn.
size_t drawn(const PipelineStep& step) {
  return std::min(kMaxRanks, step.ranks.size());
}

/// Returns the seconds that the axis must hold, > 0.
double duration_of(const PipelineStep& step) {
  double last = 0;
  for (size_t i = 0; i < drawn(step); ++i)
    for (const Spans* spans : {&step.ranks[i].measured, &step.ranks[i].planned})
      for (const PipelineSpan& span : *spans) last = std::max(last, span.end);
  return last > 0 ? last : 1e-6;
}

std::string draw_legend(const PipelineStep& step) {
  std::array<bool, kPipelineWorkCount> occurs{};
  PipelineSeconds measured;
  for (const PipelineRankStep& rank : step.ranks) {
    const PipelineSeconds own = seconds_of(rank.measured);
    for (size_t work = 0; work < kPipelineWorkCount; ++work) measured.of[work] += own.of[work];
    for (const Spans* spans : {&rank.measured, &rank.planned})
      for (const PipelineSpan& span : *spans) occurs[static_cast<size_t>(span.work)] = true;
  }
  std::string out = "<ul class=\"legend\">\n";
  for (size_t i = 0; i < kPipelineWorkCount; ++i) {
    const auto work = static_cast<PipelineWork>(i);
    if (!occurs[i]) continue;
    out += str("<li><i class=\"k-", name(work), "\"></i>", label(work));
    if (measured.of[i] > 0) out += str(" <b>", format_seconds(measured.of[i]), "</b>");
    out += "</li>\n";
  }
  return out + "</ul>\n";
}

std::string tooltip(const PipelineSpan& longest, size_t count, bool is_run) {
  const std::string text = str(describe(longest), ", ", format_seconds(longest.end - longest.begin));
  const auto blocks = static_cast<int64_t>(count);
  if (is_run) return str(counted(blocks, "short block"), ", the longest: ", text);
  return blocks == 1 ? text : str(text, ", and ", counted(blocks - 1, "short block"));
}

std::string draw_block(const Block& block, const PipelineSpan& longest, bool is_run, double top, double height) {
  double width = std::max(0.6, block.right - block.left);
  if (width > kGapped) width -= 1.2;
  std::string out = str("<rect x=\"", decimal(block.left), "\" y=\"", decimal(top), "\" width=\"", decimal(width),
                        "\" height=\"", decimal(height), "\" class=\"k k-", name(longest.work), is_run ? " r" : "",
                        "\"><title>", escape(tooltip(longest, block.count, is_run)), "</title></rect>\n");
  if (is_run || longest.micro_batch < 0) return out;
  const std::string number = str(longest.stage, "·", longest.micro_batch);
  const auto characters = static_cast<double>(number.size() - 1);  // the dot has two bytes
  if (5.8 * characters + 3 < width)
    out += draw_text(block.left + width / 2, top + height / 2 + 4, "on-bar middle", number);
  return out;
}

std::string draw_row(const Spans& spans, const Axis& time, double top, double height, std::string_view what) {
  Spans sorted = spans;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<Stretch> stretches;
  for (const PipelineSpan& span : sorted) stretches.push_back({span.begin, span.end});
  std::string out = str("<g class=\"", what, "\">\n");
  for (const Block& block : merge_blocks(stretches, time))
    out += draw_block(block, sorted[block.longest], is_run(block, stretches, time), top, height);
  out += draw_text(kTimelineRight + 10, top + height / 2 + 4, "note",
                   str(what, ", ", format_seconds(busy_seconds(spans)), " busy"));
  return out + "</g>\n";
}

std::string stages_of(const PipelineRankSummary& rank) {
  std::string text = rank.stages.size() == 1 ? "stage " : "stages ";
  for (size_t i = 0; i < rank.stages.size(); ++i) text += str(i ? ", " : "", rank.stages[i]);
  return text;
}

std::string draw_rank(const PipelineRankStep& rank, const std::string& stages, const Axis& time, double top) {
  const double below = top + kMeasuredHeight + kGap;
  std::string out = draw_text(kTimelineLeft - 8, top + kMeasuredHeight / 2 + 4, "lane end", str("rank ", rank.rank));
  out += draw_text(kTimelineLeft - 8, below + kPlannedHeight / 2 + 4, "note end", shorten(stages, 16));
  out += draw_row(rank.measured, time, top, kMeasuredHeight, "measured");
  return out + draw_row(rank.planned, time, below, kPlannedHeight, "planned");
}

std::string caption_of(const PipelineStep& step) {
  std::string text = "<p>Above, what a rank did; below, what was planned: ";
  text += step.fills_bubbles ? "K-FAC's work put into waits by the stages' and its own measured seconds. "
                             : "a replay of the stages' seconds, measured before the run, and the shortest update. ";
  text += "A block's numbers are stage·micro-batch; waits are blank. The legend adds up all ranks' measured seconds. ";
  text += "Faint blocks are many short ones. Hover for names and times.";
  if (drawn(step) < step.ranks.size())
    text += str(" The first ", drawn(step), " of ", step.ranks.size(), " ranks are drawn; trace.json has all.");
  return text + "</p>\n";
}

std::string heading_of(const PipelineSummary& p, const std::string& which) {
  std::string text = str(escape(p.schedule), ", ", counted(std::ssize(p.ranks), "rank"), ", ");
  text += p.micro_batches == 1 ? "1 micro-batch" : str(p.micro_batches, " micro-batches");
  if (p.copies > 1) text += str(", one of ", p.copies, " copies");
  return str("<h2>One step of the pipeline <small>", text, ", ", escape(which), "</small></h2>\n");
}

}  // namespace

std::string draw_pipeline(const PipelineSummary& p, const std::string& which) {
  if (!p.step || p.step->ranks.empty()) return "";
  const PipelineStep& step = *p.step;
  const double bottom = kTop + kRankHeight * static_cast<double>(drawn(step));
  const Axis time{0, duration_of(step), kTimelineLeft, kTimelineRight};
  std::string out = str("<section>", heading_of(p, which), draw_legend(step));
  out += str("<div class=\"wide\"><svg class=\"step\" viewBox=\"0 0 ", kTimelineWidth, " ", decimal(bottom + 22),
             "\" role=\"img\" aria-label=\"Work of each rank of the pipeline in one step, measured above planned\">\n");
  out += draw_columns({kTimelineLeft, kTimelineRight, kTop, bottom}, time, second_ticks(time.high, 8));
  for (size_t i = 0; i < drawn(step); ++i)
    out += draw_rank(step.ranks[i], i < p.ranks.size() ? stages_of(p.ranks[i]) : "", time,
                     kTop + kRankHeight * static_cast<double>(i) + 4);
  return str(out, "</svg></div>\n", caption_of(step), "</section>\n");
}

std::vector<TraceEvent> pipeline_events(const PipelineSummary& p) {
  std::vector<TraceEvent> events;
  if (!p.step) return events;
  for (const PipelineRankStep& rank : p.step->ranks)
    for (const Spans* spans : {&rank.measured, &rank.planned})
      for (const PipelineSpan& span : *spans)
        events.push_back({.name = describe(span),
                          .lane = str("rank ", rank.rank, spans == &rank.planned ? ", planned" : ""),
                          .start_seconds = p.step->begin + span.begin,
                          .seconds = span.end - span.begin,
                          .bytes = 0});
  return events;
}

}  // namespace spillway::report
