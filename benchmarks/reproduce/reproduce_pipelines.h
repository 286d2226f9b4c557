/// Published figures of pipelines, beside those of their simulation and their formulas.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/reproduce/block_profile.h"
#include "benchmarks/reproduce/reproduction.h"

namespace spillway::runtime {

/// Returns the names that reproduce_pipeline() takes, in their order.
std::vector<std::string> pipeline_reproductions();

/// Predicts figures of Osawa, Li, Hoefler, PipeFisher, MLSys 2023; nothing for another name. Throws BadRequest where
/// the source lacks the times of a micro-batch size, or where its own times cannot change the figures.
std::optional<Reproduction> reproduce_pipeline(std::string_view name, const BlockTimesSource& blocks);

}  // namespace spillway::runtime
