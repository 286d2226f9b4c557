/// Ways to reduce a vector: what an allreduce benchmark sets side by side.
#pragma once
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "ddl/element.h"

namespace spillway::tools {

/// What is reduced, on every rank alike.
struct Problem {
  ddl::Element element = ddl::Element::float32;
  ddl::Reduction reduction = ddl::Reduction::sum;
  int64_t count = 0;  ///< elements
  int64_t bytes() const { return count * ddl::element_bytes(element); }
};

struct Way {
  std::string name;
  /// Starts what makes the result, from the input or from what the result holds. Collective. Throws CommError.
  std::function<void(bool in_place)> reduce;
  nlohmann::json more = nlohmann::json::object();  ///< what its row says besides
  /// More of that, or null, when all was measured.
  std::function<nlohmann::json()> explain = [] { return nlohmann::json(nullptr); };
};

/// A rank's input, which is contribution(), and its result, on some device.
class Vectors {
 public:
  virtual ~Vectors() = default;
  /// Makes the result something that is none.
  virtual void spoil() = 0;
  /// Makes the result the input.
  virtual void refill() = 0;
  /// Until the device is done with all that was started.
  virtual void wait() = 0;
  /// The result on the host, until the next call.
  virtual std::span<const std::byte> result() = 0;
  /// The same on every rank; they live no longer than this.
  virtual std::vector<Way> ways() = 0;
};

}  // namespace spillway::tools
