/// Flags whose values are numbers. All are read by parse_number(), because CLI11 takes a number with a leading 0 for an
/// octal one, and the nearest that it can hold for one that is too large.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace spillway::tools {

/// The type of the number that a flag's value is.
template <class Value>
struct NumberOf {
  using Type = Value;
};
/// The type of the number that may be given, or of each number of a list.
template <class Value>
requires requires {
  typename Value::value_type;
}
struct NumberOf<Value> {
  using Type = typename Value::value_type;
};

/// Accepts numbers in base 10 that `Number` can hold: int, int64_t, uint64_t or double. CLI11 gets them without leading
/// zeros.
template <class Number>
CLI::Validator decimal();

/// Adds a flag for a number, for one that may be given (std::optional) or for a list of numbers (std::vector).
template <class Value>
CLI::Option* add_number(CLI::App& command, const std::string& flag, Value& value, const std::string& meaning) {
  return command.add_option(flag, value, meaning)->transform(decimal<typename NumberOf<Value>::Type>());
}

/// Accepts whole numbers from `least` on.
CLI::Validator at_least(int64_t least);

/// Accepts numbers from `least` to `most`, and so no NaN.
CLI::Validator between(double least, double most);

}  // namespace spillway::tools
