/// Ranks and the point-to-point transport between them: what every collective is built on.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::ddl {

/// A rank did not answer within the deadline, died, or disagrees about what is being communicated. Names rank, level and
/// stage. The communicator is dead afterwards: every later call throws.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace spillway::ddl
