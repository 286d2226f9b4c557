/// The side of a benchmark's parent: children that take steps when they are told to, so that a noisy machine is noisy
/// for all of them and each has an allocator of its own.
#pragma once
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway::tools {

/// A child of this program that answers as serve() does.
class Worker {
 public:
  /// `arguments`: its command line, the program's name included. Throws std::system_error.
  Worker(std::string name, std::vector<std::string> arguments);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Ends the child and waits for it.
  ~Worker();

  /// One step's numbers. Throws std::runtime_error when the child has ended.
  nlohmann::json step();
  /// What is known at the end. Nothing may be asked afterwards.
  nlohmann::json finish();

 private:
  nlohmann::json read();

  std::string name_;
  int pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

/// The middle one, or the mean of the middle two; 0 of none.
double median(std::vector<double> values);

}  // namespace spillway::tools
