#include <cmath>

#include "core/bytes.h"
#include "ddl/comm/levels.h"
#include "runtime/io/shape3.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"
#include "tools/ddlrun/hosts.h"

namespace spillway::fuzz {
using namespace swap;
namespace {

void size_in_bytes(std::string_view input) {
  const int64_t bytes = parse_bytes(input);
  require(bytes >= 0, "sizes are not negative");
  const auto back = static_cast<double>(parse_bytes(format_bytes(bytes)));
  require(std::abs(back - static_cast<double>(bytes)) <= 0.01 * static_cast<double>(bytes), "sizes are printed to 1 %");
}

void shape(std::string_view input) {
  const Shape3 shape = parse_shape(input);
  for (const int64_t extent : shape) require(extent >= 1 && extent <= 32767, "extents are NIfTI-1's");
  require(parse_shape(format_shape(shape)) == shape, "a shape is printed as it is read");
}

void levels(std::string_view input) {
  const int size = static_cast<int>(take_byte(input));
  const ddl::Levels levels = ddl::Levels::parse(input, size);
  require(levels.size() == size && !levels.shape().empty(), "levels are of all ranks");
  require(ddl::Levels(size, levels.labels()).hash() == levels.hash(), "labels make the same levels");
}

}  // namespace

void sizes(std::string_view input) {
  const unsigned kind = take_byte(input) % 4;
  taken([&] {
    if (kind == 0) size_in_bytes(input);
    if (kind == 1) shape(input);
    if (kind == 2) levels(input);
    if (kind == 3)
      if (const auto count = ddlrun::parse_count(input)) require(*count >= 1 && *count <= ddlrun::kMaxSlots, "counts");
  });
}

}  // namespace spillway::fuzz
