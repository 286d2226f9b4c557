/// Published figures of pipelines that follow from formulas.
#pragma once
#include <string>

#include "benchmarks/reproduce/block_profile.h"
#include "benchmarks/reproduce/pipeline_formulas.h"
#include "benchmarks/reproduce/reproduction.h"

namespace spillway::runtime {

/// Returns a figure of r and of preconditioning's time by ranks, micro-batch size and recomputation. Source: Osawa et
/// al., PipeFisher, MLSys 2023, figures 5, 9 and 10. Throws BadRequest where the source lacks 8, 16 or 32 sequences.
Reproduction pipefisher_performance(int figure, const std::string& block, PublishedOrder order,
                                    const BlockTimesSource& blocks);

/// Returns a figure of r and of the gain over K-FAC+skip, over ranks, micro-batches, their sizes and GPUs. Source: the
/// same, figures 6 and 11 to 16. Without a block's name it is the summary of all blocks.
Reproduction pipefisher_throughput(int figure, const std::string& block, const BlockTimesSource& blocks);

/// Returns what becomes of r where the model's width is multiplied and factors are divided into as many blocks. Source:
/// the same, appendix A.2.
Reproduction pipefisher_wide(const BlockTimesSource& blocks);

}  // namespace spillway::runtime
