/// Ways to carry out a collective, which its benchmark compares.
#pragma once
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/allreduce/problem.h"

namespace spillway::tools {

struct Way {
  std::string name;
  /// Starts the work that makes the result, from the input or from the content of the result's memory. Collective.
  /// Throws CommError.
  std::function<void(bool in_place)> reduce;
  nlohmann::json more = nlohmann::json::object();  ///< further fields of its row
  /// Returns still more fields, or null, when all was measured.
  std::function<nlohmann::json()> explain = [] { return nlohmann::json(nullptr); };
};

/// A rank's input, made by contribute(), and memory for the whole vector, on some device.
class Vectors {
 public:
  virtual ~Vectors() = default;
  /// Fills the vector's memory with bytes that are no result.
  virtual void spoil() = 0;
  /// Spoils the vector's memory, then puts the rank's input in its place there. A call in place begins from this.
  virtual void refill() = 0;
  /// Waits until the device is done with all work that was started.
  virtual void wait() = 0;
  /// Returns the rank's result of the last call, on the host. It is valid until the next call.
  virtual std::span<const std::byte> result() = 0;
  /// Returns the ways, which are the same on every rank. They must not outlive these vectors.
  virtual std::vector<Way> ways() = 0;
};

}  // namespace spillway::tools
