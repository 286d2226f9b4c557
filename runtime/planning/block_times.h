/// Published times of transformer blocks on a P100, for plans of pipelines of such GPUs.
#pragma once
#include <array>

namespace spillway::runtime {

/// Milliseconds of one transformer block's work on one GPU.
struct BlockTimes {
  double forward = 0;          ///< one micro-batch
  double backward = 0;         ///< one micro-batch
  double statistics = 0;       ///< K-FAC's factors of one micro-batch
  double inversion = 0;        ///< all factors of the block, once a refresh
  double preconditioning = 0;  ///< all gradients of the block, once a step
};

/// Blocks of BERT with a micro-batch of 32 sequences of 128 words on one P100. Source: the PipeFisher authors'
/// measurements, github.com/kazukiosawa/pipe-fisher, prof/, commit 16ee8db.
inline constexpr BlockTimes kBertBase{9.748, 16.450, 25.547, 71.667, 6.805};
inline constexpr BlockTimes kBertLarge{16.100, 26.953, 43.500, 126.701, 14.734};

/// The sides of the factors of a transformer block's six matrices, in widths of the model.
inline constexpr std::array<double, 6> kInputSides{1, 1, 1, 1, 1, 4}, kOutputSides{1, 1, 1, 1, 4, 1};

}  // namespace spillway::runtime
