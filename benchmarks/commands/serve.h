/// The child's side of a benchmark: a process that takes steps when it is told to.
#pragma once
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/cli/command.h"

namespace spillway::tools {

/// Answers the line "step" on stdin with one step's numbers, another line with none as soon as it can take steps, and
/// the end of input with the numbers that are known at the end.
template <class Step, class Last>
int serve(Step step, Last last) {
  for (std::string line; std::getline(std::cin, line);)
    std::cout << (line == "step" ? step() : nlohmann::json()).dump() << std::endl;
  std::cout << last().dump() << std::endl;
  return kOk;
}

}  // namespace spillway::tools
