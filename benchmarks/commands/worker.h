/// The parent's side of a benchmark: children that take steps when they are told to. So a noisy machine is noisy for
/// all of them, and each has an allocator of its own.
#pragma once
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway::tools {

/// A child process of this program that answers as serve() does.
class Worker {
 public:
  /// Starts the child. `arguments` is its command line, the program's name included. Throws std::system_error.
  Worker(std::string name, std::vector<std::string> arguments);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Ends the child and waits for it.
  ~Worker();

  /// Waits until the child can take steps. Children on one GPU start one after the other: each would count the memory
  /// that others take meanwhile, and the threads of many would keep each other from the cores.
  void wait_until_ready();
  /// Lets the child take a step and returns its numbers. Throws std::runtime_error when the child has ended.
  nlohmann::json step();
  /// Returns the numbers that are known at the end. Afterwards the child may not be asked again.
  nlohmann::json finish();

 private:
  nlohmann::json ask(const char* line);
  nlohmann::json read();

  std::string name_;
  int pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

}  // namespace spillway::tools
