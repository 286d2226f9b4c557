/// Published times of transformers' blocks, and how a block's second-order work is divided over its factors.
#pragma once
#include <array>

namespace spillway::runtime {

/// Milliseconds of one block of a model.
struct BlockTimes {
  double forward = 0, backward = 0;  ///< passes of a micro-batch
  double statistics = 0;             ///< K-FAC's products of all factors, for a micro-batch
  double inversion = 0;              ///< inversions of all factors, in each refresh
  double preconditioning = 0;        ///< K-FAC's directions, in each step
};

/// Milliseconds of one block of a transformer and a micro-batch of 32 sequences of 128 words on one P100, which the
/// authors of PipeFisher publish with their program (github.com/kazukiosawa/pipe-fisher, prof/).
inline constexpr BlockTimes kBertBase{9.748, 16.450, 25.547, 71.667, 6.805};
inline constexpr BlockTimes kBertLarge{16.100, 26.953, 43.500, 126.701, 14.734};

/// The sides of the factors of a transformer block's six matrices, in the width of the model.
inline constexpr std::array<double, 6> kInputSides{1, 1, 1, 1, 1, 4}, kOutputSides{1, 1, 1, 1, 4, 1};

}  // namespace spillway::runtime
