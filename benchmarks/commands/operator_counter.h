/// A count of operators, which a step of small tensors takes as long as.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace spillway::tools {

struct CountedThread;

/// Counts the operators that this thread runs while it lives, without views, allocations and operators that only call
/// others: about the kernels that a GPU would run. One at a time a thread.
class OperatorCounter {
 public:
  OperatorCounter();
  ~OperatorCounter();
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  /// Returns the operators so far by name: `aten::bmm`.
  const std::map<std::string, int64_t>& by_name() const { return by_name_; }
  /// Returns the sum of by_name().
  int64_t all() const;

 private:
  std::map<std::string, int64_t> by_name_;
  const std::unique_ptr<CountedThread> thread_;
  uint64_t callback_;
};

}  // namespace spillway::tools
