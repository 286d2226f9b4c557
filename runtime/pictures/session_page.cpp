#include "runtime/pictures/session_page.h"

#include <algorithm>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/median.h"
#include "runtime/pictures/operators.h"
#include "runtime/pictures/page_frame.h"
#include "runtime/pictures/paging.h"
#include "runtime/pictures/report_files.h"
#include "runtime/pictures/step_picture.h"
#include "runtime/pictures/text.h"

namespace spillway {
namespace report {
namespace {

bool is_limited(const SessionReport& session) {
  return session.budget_bytes != kUnlimitedBytes;
}

int64_t steps_of(const SessionReport& session) {
  int64_t steps = 0;
  for (const auto& [kind, seconds] : session.seconds_by_kind) steps += std::ssize(seconds);
  return steps;
}

/// Returns the typical time of a kind of step. The first two page on demand and are left out where there are others.
double typical_seconds(const std::vector<double>& seconds) {
  return median({seconds.begin() + (seconds.size() > 2 ? 2 : 0), seconds.end()});
}

std::string title_of(const SessionReport& session) {
  return str("a Session on ", session.device, ", ",
             is_limited(session) ? "budget " + format_bytes(session.budget_bytes) : std::string("no budget"));
}

std::string draw_tiles(const SessionReport& session) {
  std::string out = "<section class=\"tiles\">\n";
  const double of_budget = static_cast<double>(session.peak_bytes) / static_cast<double>(session.budget_bytes);
  out += tile("peak", format_bytes(session.peak_bytes),
              is_limited(session) ? str(format_percent(of_budget), " of ", format_bytes(session.budget_bytes))
                                  : std::string("no budget"));
  out += tile("smallest budget", format_bytes(session.floor_bytes), session.floor_operator);
  if (const auto found = session.seconds_by_kind.find(session.kind); found != session.seconds_by_kind.end())
    out += tile("median step", format_seconds(typical_seconds(found->second)), session.kind);
  if (const int64_t steps = steps_of(session); steps > 0) {
    const double per_step = session.exposed_seconds / static_cast<double>(steps);
    out += tile("waiting for copies", format_seconds(per_step), "per step");
  }
  return out + "</section>\n";
}

std::string row(std::string_view label, const std::string& text) {
  return str("<tr><th>", escape(label), "</th><td>", escape(text), "</td></tr>\n");
}

std::string draw_numbers(const SessionReport& session) {
  std::string out = "<section><h2>In numbers</h2>\n<div class=\"wide\"><table class=\"narrow\">\n";
  for (const auto& [kind, seconds] : session.seconds_by_kind)
    if (!seconds.empty())
      out += row(str("steps of kind ", kind),
                 str(format_count(std::ssize(seconds)), ", median ", format_seconds(typical_seconds(seconds))));
  const auto steps = std::max<int64_t>(1, steps_of(session));
  out += row("paged per step",
             str(format_bytes(session.bytes_out / steps), " out, ", format_bytes(session.bytes_in / steps), " in"));
  if (session.replays > 0) out += row("made again, whole Session", format_count(session.replays));
  if (session.host_peak_bytes > 0) out += row("peak on the host", format_bytes(session.host_peak_bytes));
  if (session.disk_peak_bytes > 0) out += row("peak on disk", format_bytes(session.disk_peak_bytes));
  return out + "</table></div></section>\n";
}

std::string recorded_step(const SessionReport& session) {
  return session.recording.step < 0 ? std::string() : str("step ", session.recording.step + 1, ", ", session.kind);
}

}  // namespace

std::string draw_session_page(const SessionReport& session) {
  std::string out = open_page(title_of(session));
  out += str("<header><h1>", escape(title_of(session)), "</h1>\n<p>", counted(steps_of(session), "step"), "</p>\n",
             "</header>\n");
  out += draw_tiles(session);
  out += draw_step(session.recording, {.budget_bytes = session.budget_bytes}, recorded_step(session));
  out += draw_numbers(session);
  if (session.paging) out += draw_paging(*session.paging, session.budget_bytes);
  return out + draw_operators(session.recording) + close_page();
}

}  // namespace report

void write_report(const std::filesystem::path& dir, const SessionReport& session) {
  report::write_files(dir, report::draw_session_page(session), session.recording.events);
}

}  // namespace spillway
