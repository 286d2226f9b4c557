#include "benchmarks/reproduce/published.h"

#include <array>
#include <optional>
#include <stdexcept>

#include "benchmarks/reproduce/published_tables.h"
#include "benchmarks/reproduce/split_lines.h"
#include "core/error.h"
#include "core/parse_number.h"

namespace spillway::runtime {
namespace {}  // namespace

double PublishedTable::at(std::string_view row, std::string_view column) const {
  const auto refuse = [&](const char* why) {
    throw std::logic_error(str("published.tsv ", why, ": ", paper_, ", ", place_, ", ", row, ", ", column));
  };
  std::optional<double> found;
  for (const std::vector<std::string_view>& fields : split_lines(kPublishedTsv, '\t')) {
    if (fields.size() < 5 || fields[0] != paper_ || fields[1] != place_ || fields[2] != row || fields[3] != column)
      continue;
    const std::optional<double> number = parse_number<double>(fields[4]);
    if (!number) refuse("has no number there");
    if (found && *found != *number) refuse("has two numbers there");
    found = number;
  }
  if (!found) refuse("has no such row");
  return *found;
}

}  // namespace spillway::runtime
