#include "ddl/comm/element.h"

#include <array>

namespace spillway::ddl {

int64_t element_bytes(Element element) {
  switch (element) {
    case Element::float64:
    case Element::int64:
      return 8;
    case Element::float16:
    case Element::bfloat16:
      return 2;
    default:
      return 4;
  }
}

int64_t partial_bytes(Element element) {
  return element == Element::float16 || element == Element::bfloat16 ? 4 : element_bytes(element);
}

std::string_view name_of(Element element) {
  static constexpr std::array<std::string_view, 6> kNames{"float32",  "float64", "float16",
                                                          "bfloat16", "int32",   "int64"};
  return kNames[static_cast<size_t>(element)];
}

std::string_view name_of(Reduction reduction) {
  static constexpr std::array<std::string_view, 4> kNames{"sum", "average", "maximum", "minimum"};
  return kNames[static_cast<size_t>(reduction)];
}

}  // namespace spillway::ddl
