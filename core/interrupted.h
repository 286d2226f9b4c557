/// The error of work that was left because somebody asked for it.
#pragma once
#include <stdexcept>

namespace spillway {

/// An interruption by the user: the work can be taken up again. It passes through the gate as it is, because it is no
/// failure of the operator that it comes before.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace spillway
