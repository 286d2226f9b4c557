/// Times of a transformer block by the size of its micro-batch.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/planning/block_times.h"

namespace spillway::runtime {

/// The times of one block on one device.
struct BlockProfile {
  std::string block = {};                        ///< such as BERT-Base
  std::string device = {};                       ///< a GPU, or the file that the times are from
  std::map<int, BlockTimes> by_batch_size = {};  ///< by sequences of a micro-batch
  /// Returns the times of a batch size. Throws BadRequest naming the sizes that there are.
  const BlockTimes& at(int batch_size) const;
};

/// Returns the profiles that the PipeFisher authors publish with their program: six blocks on P100, V100 and RTX 3090,
/// with up to 64 sequences, rounded to microseconds (block_times.tsv). BERT's sequences have 128 words. Source:
/// github.com/kazukiosawa/pipe-fisher, prof/, commit 16ee8db.
std::vector<BlockProfile> published_profiles();

/// Reads a profile from a CSV file. Its first line names columns: `bs`, the sequences of a micro-batch, and `time_f`,
/// `time_b`, `time_kron`, `time_inv` and `time_prec`, the fields of BlockTimes in their order. So the authors' own
/// files can be read. Other columns are left out. Throws BadRequest naming the file, and the line or column at fault.
BlockProfile read_block_profile(const std::string& file);

/// The times that predictions take: the published ones, or one profile of the user's own for all blocks.
class BlockTimesSource {
 public:
  explicit BlockTimesSource(std::optional<BlockProfile> own = {}) : own_(std::move(own)) {}
  bool is_own() const { return own_.has_value(); }
  /// Returns the profiles of a block on each GPU; of all blocks without a name; the user's own one alone where there is
  /// one.
  std::vector<BlockProfile> profiles(std::string_view block = {}) const;
  /// Returns the times of a block on one P100. Throws BadRequest as BlockProfile::at() does.
  BlockTimes on_p100(std::string_view block, int batch_size) const;
  /// Returns a sentence that says where the times come from.
  std::string describe() const;

 private:
  std::optional<BlockProfile> own_;
};

}  // namespace spillway::runtime
