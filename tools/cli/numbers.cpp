#include "tools/cli/numbers.h"

#include <limits>
#include <type_traits>

#include "core/error.h"
#include "core/parse_number.h"

namespace spillway::tools {
namespace {

template <class Number>
std::string refusal_of(const std::string& text) {
  if (std::is_floating_point_v<Number>)
    return str("'", text, "' is no number; allowed are numbers in base 10, such as 0.5 or 1e-3");
  return str("'", text, "' is no whole number", std::is_unsigned_v<Number> ? " from 0 on" : "",
             "; allowed are whole numbers in base 10, up to ", std::numeric_limits<Number>::max());
}

}  // namespace

template <class Number>
CLI::Validator decimal() {
  const auto read = [](std::string& text) {
    const auto number = parse_number<Number>(text);
    if (!number) return refusal_of<Number>(text);
    if constexpr (std::is_integral_v<Number>) text = std::to_string(*number);
    return std::string();
  };
  return CLI::Validator(read, std::is_unsigned_v<Number> ? "0 or more" : "");
}

template CLI::Validator decimal<int>();
template CLI::Validator decimal<int64_t>();
template CLI::Validator decimal<uint64_t>();
template CLI::Validator decimal<double>();

CLI::Validator at_least(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        const auto value = parse_number<int64_t>(text);
        return value && *value >= least ? std::string() : str("'", text, "' is no whole number from ", least, " on");
      },
      str(least, " or more"));
}

CLI::Validator between(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        const auto value = parse_number<double>(text);
        return value && *value >= least && *value <= most ? std::string()
                                                          : str("'", text, "' is no number from ", least, " to ", most);
      },
      str(least, " to ", most));
}

}  // namespace spillway::tools
