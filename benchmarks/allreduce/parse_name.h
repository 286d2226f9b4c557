/// Values of flags that are names.
#pragma once
#include <string_view>

#include "core/value_names.h"

namespace spillway::tools {

/// Returns the value that `flag` names. Throws BadRequest of the form "`flag`: x; allowed: a, b, c".
template <class Value, size_t n>
Value parse_name(const ValueNames<Value, n>& names, std::string_view flag, std::string_view text) {
  if (const auto value = names.find(text)) return *value;
  throw BadRequest(str(flag, ": ", text, "; allowed: ", names.list()));
}

}  // namespace spillway::tools
