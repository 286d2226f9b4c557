#include "benchmarks/reproduce/published.h"

#include <array>
#include <charconv>
#include <optional>
#include <stdexcept>

#include "benchmarks/reproduce/published_tables.h"
#include "benchmarks/reproduce/split_lines.h"
#include "core/error.h"

namespace spillway::runtime {
namespace {

/// Returns the number that a field is as a whole; nothing where it is a word or a formula.
std::optional<double> number_of(std::string_view field) {
  double number = 0;
  const auto [rest, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  if (error != std::errc() || rest != field.data() + field.size()) return {};
  return number;
}

}  // namespace

double PublishedTable::at(std::string_view row, std::string_view column) const {
  const auto refuse = [&](const char* why) {
    throw std::logic_error(str("published.tsv ", why, ": ", paper_, ", ", place_, ", ", row, ", ", column));
  };
  std::optional<double> found;
  for (const std::vector<std::string_view>& fields : split_lines(kPublishedTsv, '\t')) {
    if (fields.size() < 5 || fields[0] != paper_ || fields[1] != place_ || fields[2] != row || fields[3] != column)
      continue;
    const std::optional<double> number = number_of(fields[4]);
    if (!number) refuse("has no number there");
    if (found && *found != *number) refuse("has two numbers there");
    found = number;
  }
  if (!found) refuse("has no such row");
  return *found;
}

}  // namespace spillway::runtime
