/// Errors that callers can act on. Mistakes of the caller are std::invalid_argument (BadRequest) or TORCH_CHECK.
#pragma once
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace spillway {

/// Concatenates the printed forms of `parts`. All messages in LibTorch-free code are built with it.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// A request that cannot be carried out as written: a bad option, an unreadable file, a wrong shape. The message names
/// the value and the allowed range.
class BadRequest : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A charge that does not fit the budget when nothing (more) can be evicted. The operator that asked did not run to its
/// end. Training state is intact, unless the message says that an operator in windows had begun to change it.
class OutOfBudget : public std::runtime_error {
 public:
  OutOfBudget(const std::string& what, int64_t requested_bytes, int64_t budget_bytes)
      : std::runtime_error(what), requested_bytes_(requested_bytes), budget_bytes_(budget_bytes) {}
  int64_t requested_bytes() const noexcept { return requested_bytes_; }
  int64_t budget_bytes() const noexcept { return budget_bytes_; }

 private:
  int64_t requested_bytes_;
  int64_t budget_bytes_;
};

/// A failure of the disk tier to store a page, or to give it back unchanged: the disk is full or failing, or the file
/// is damaged.
class DiskError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A device that is not there or cannot be used: no driver, no such GPU, a library that is missing.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A budget below the floor of the request. It is refused before anything is written.
class InfeasibleBudget : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace spillway
