#include "runtime/pictures/paging.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

constexpr size_t kRows = 12;

std::string bound_sentence(const PagingSummary& p) {
  const bool waits = p.exposed_seconds > 0.03 * p.predicted_seconds;
  const bool link_bound = p.bound_seconds > 1.001 * p.shortest_compute_seconds;
  std::string text = str("<p>A step computes for ", format_seconds(p.compute_seconds), " and moves ",
                         format_bytes(p.bytes_out), " out and ", format_bytes(p.bytes_in), " in. ");
  text += str(link_bound ? "The copies bound it" : "Computing bounds it", ": no schedule is faster than ",
              format_seconds(p.bound_seconds), " with every operator at the shortest time that was seen. ");
  if (p.predicted_seconds <= 0) return text + "No schedule fits the budget, so pages come and go on demand.</p>\n";
  text += str("Predicted are ", format_seconds(p.predicted_seconds), ", of which operators wait ",
              format_seconds(p.exposed_seconds), " for copies",
              waits ? ": a larger budget, or a faster link, would help." : ".");
  return text + "</p>\n";
}

std::string cell(const std::string& text) {
  return str("<td>", text.empty() ? "–" : escape(text), "</td>");
}

std::string text_cell(const std::string& text) {
  return str("<td class=\"text\">", text.empty() ? "–" : breakable(text), "</td>");
}

std::string why(const PlannedAbsence& absence) {
  std::string text = absence.replayed ? "made again instead of copied" : "copied";
  return str(text, "; not used for ", format_seconds(absence.seconds));
}

std::string draw_absences(const PagingSummary& p) {
  if (p.absences.empty()) return "<p>Nothing leaves the device: everything fits.</p>\n";
  std::string out =
      "<div class=\"wide\"><table>\n<tr><th>made by</th><th class=\"left\">kind</th><th>bytes</th>"
      "<th class=\"text\">leaves after</th><th class=\"text\">back before</th><th class=\"text\">how</th></tr>\n";
  const size_t rows = std::min(kRows, p.absences.size());
  for (size_t i = 0; i < rows; ++i) {
    const PlannedAbsence& a = p.absences[i];
    out += str("<tr><th>", a.maker.empty() ? "before the step" : breakable(a.maker), "</th>", "<td class=\"left\">",
               name(a.category), "</td>", cell(format_bytes(a.bytes)), text_cell(a.after), text_cell(a.before),
               text_cell(why(a)), "</tr>\n");
  }
  out += "</table></div>\n";
  if (p.absences.size() > rows) {
    int64_t rest = 0;
    for (size_t i = rows; i < p.absences.size(); ++i) rest += p.absences[i].bytes;
    out += str("<p>And ", counted(static_cast<int64_t>(p.absences.size() - rows), "smaller one"), ", ",
               format_bytes(rest), " together.</p>\n");
  }
  return out;
}

std::string draw_footprints(const PagingSummary& p, int64_t budget_bytes) {
  if (p.footprints.empty()) return "";
  const bool limited = budget_bytes != kUnlimitedBytes;
  std::string out = str("<h3>Operators by footprint</h3>\n<div class=\"wide\"><table>\n<tr><th>operator</th>",
                        "<th>arguments</th><th>outputs</th><th>scratch</th><th>together</th>",
                        limited ? "<th>of the budget</th>" : "", "</tr>\n");
  for (size_t i = 0; i < std::min(kRows, p.footprints.size()); ++i) {
    const Footprint& f = p.footprints[i];
    out += str("<tr><th>", breakable(f.name), "</th>", cell(format_bytes(f.argument_bytes)),
               cell(format_bytes(f.output_bytes)), cell(format_bytes(f.scratch_bytes)), cell(format_bytes(f.bytes())),
               limited ? cell(format_percent(static_cast<double>(f.bytes()) / static_cast<double>(budget_bytes))) : "",
               "</tr>\n");
  }
  return out + "</table></div>\n";
}

}  // namespace

std::string draw_paging(const PagingSummary& paging, int64_t budget_bytes) {
  return str("<section><h2>What was paged <small>", escape(paging.kind), " steps</small></h2>\n",
             bound_sentence(paging), draw_absences(paging), draw_footprints(paging, budget_bytes), "</section>\n");
}

}  // namespace spillway::report
