/// Published figures beside their predictions.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/reproduce/block_profile.h"
#include "benchmarks/reproduce/reproduction.h"

namespace spillway::runtime {

/// Returns the names that reproduce() takes, in their order.
std::vector<std::string> reproductions();

/// Predicts the figures of a paper. No input is fitted to them. Nothing runs but dry steps. `blocks` are for pipelines.
/// Throws BadRequest naming the names that there are, where its own times cannot change the figures, and where they
/// lack a micro-batch size.
Reproduction reproduce(std::string_view name, const BlockTimesSource& blocks = BlockTimesSource());

}  // namespace spillway::runtime
