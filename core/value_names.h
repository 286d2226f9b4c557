/// The names of an enumeration's values, as flags and results spell them.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace spillway {

/// The values of an enumeration and their names, in the order in which messages list them.
template <class Value, size_t n>
struct ValueNames {
  std::array<std::pair<Value, std::string_view>, n> pairs;

  /// Returns the value named `text`. Throws BadRequest of the form "`who` is 'x'; allowed is a, b or c".
  Value parse(std::string_view who, std::string_view text) const {
    if (const auto value = find(text)) return *value;
    throw BadRequest(str(who, " is '", text, "'; allowed is ", list(" or ")));
  }
  /// Returns the value named `text`, if there is one.
  std::optional<Value> find(std::string_view text) const {
    for (const auto& [value, name] : pairs)
      if (name == text) return value;
    return std::nullopt;
  }
  /// Returns the name of `wanted`, which must be in the table.
  std::string_view name(Value wanted) const {
    for (const auto& [value, name] : pairs)
      if (value == wanted) return name;
    return "?";
  }
  /// Returns all names, `a, b` followed by `last` and `c`.
  std::string list(std::string_view last = ", ") const {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += str(i == 0 ? "" : i + 1 == n ? last : ", ", pairs[i].second);
    return text;
  }
};

/// Makes a table: `value_names<Value>({{Value::a, "a"}, {Value::b, "b"}})`.
template <class Value, size_t n>
constexpr ValueNames<Value, n> value_names(const std::pair<Value, std::string_view> (&pairs)[n]) {
  return {std::to_array(pairs)};
}

}  // namespace spillway
