/// Ways to carry out a collective: what its benchmark sets side by side.
#pragma once
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/allreduce/problem.h"

namespace spillway::tools {

struct Way {
  std::string name;
  /// Starts what makes the result, from the input or from what the result's memory holds. Collective. Throws CommError.
  std::function<void(bool in_place)> reduce;
  nlohmann::json more = nlohmann::json::object();  ///< what its row says besides
  /// More of that, or null, when all was measured.
  std::function<nlohmann::json()> explain = [] { return nlohmann::json(nullptr); };
};

/// A rank's input, which it contributes (contribute()), and memory for the whole vector, on some device.
class Vectors {
 public:
  virtual ~Vectors() = default;
  /// Makes that memory something that is no result.
  virtual void spoil() = 0;
  /// Spoils it, then puts the rank's input in its place there: where a call in place begins.
  virtual void refill() = 0;
  /// Until the device is done with all that was started.
  virtual void wait() = 0;
  /// The rank's result of the last call on the host, until the next call.
  virtual std::span<const std::byte> result() = 0;
  /// The same on every rank; they live no longer than this.
  virtual std::vector<Way> ways() = 0;
};

}  // namespace spillway::tools
