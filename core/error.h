/// Errors that callers can act on. Caller mistakes are std::invalid_argument (BadRequest) or TORCH_CHECK.
#pragma once
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace spillway {

/// Concatenates the printed forms of `parts`: the one way messages are built in the LibTorch-free rooms.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// A request that cannot be honoured as written: a bad option, an unreadable file, a wrong shape. Names the value and
/// the allowed range.
class BadRequest : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A charge does not fit the budget and nothing (more) can be evicted. The operator that asked did not run to its end;
/// training state is intact, unless the message says that an operator in windows had begun to change it.
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

/// The disk tier cannot store a page, or cannot give it back as it was: the disk is full, failing, or the file is
/// damaged.
class DiskError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A device that is not there or cannot be used: no driver, no such card, a library that is missing.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A budget below the floor of what was asked for; refused before anything was written.
class InfeasibleBudget : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace spillway
