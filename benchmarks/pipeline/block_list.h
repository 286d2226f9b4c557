/// The blocks of the model whose times a benchmark of pipelines emulates.
#pragma once
#include <string>
#include <vector>

#include "runtime/planning/block_times.h"

namespace spillway::tools {

/// A model as a list of blocks, in their order.
struct BlockList {
  std::string name;                         ///< for people: `BERT-Base on one P100`, or the file
  std::vector<runtime::BlockTimes> blocks;  ///< milliseconds
};

/// Returns so many blocks of BERT-Base with their published times.
BlockList bert_base(int blocks);

/// Reads a table of blocks. Its first line names the columns, in any order: forward, backward, statistics, inversion
/// and preconditioning, in milliseconds, and perhaps `blocks`. Each further line is a kind of block, which stands
/// `blocks` times in a row, else once. Throws BadRequest naming the file, the line and the column.
BlockList read_blocks(const std::string& file);

}  // namespace spillway::tools
