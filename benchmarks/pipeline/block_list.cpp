#include "benchmarks/pipeline/block_list.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/host/text_file.h"
#include "core/parse_number.h"

namespace spillway::tools {
namespace {

using runtime::BlockTimes;

constexpr const char* kBlocks = "blocks";
constexpr std::array<std::pair<const char*, double BlockTimes::*>, 5> kColumns{
    {{"forward", &BlockTimes::forward},
     {"backward", &BlockTimes::backward},
     {"statistics", &BlockTimes::statistics},
     {"inversion", &BlockTimes::inversion},
     {"preconditioning", &BlockTimes::preconditioning}}};
constexpr int kMaxBlocks = 10'000;

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  for (const char letter : line) {
    if (letter == ',')
      cells.emplace_back();
    else if (letter != ' ' && letter != '\t')
      cells.back() += letter;
  }
  return cells;
}

/// Reads the lines of one file.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  std::vector<BlockTimes> read() {
    std::istringstream stream(text());
    std::vector<BlockTimes> blocks;
    for (std::string line; std::getline(stream, line);) {
      ++line_;
      const std::vector<std::string> cells = cells_of(line);
      if (cells.size() == 1 && cells.front().empty()) continue;
      if (columns_.empty())
        read_columns(cells);
      else
        read_kind(cells, blocks);
    }
    if (blocks.empty()) throw BadRequest(str("--emulate: '", file_, "' has no block"));
    return blocks;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw BadRequest(str("--emulate: ", file_, ":", line_, ": ", reason));
  }

  std::string text() const {
    try {
      return read_text_file(file_);
    } catch (const BadRequest& error) {
      throw BadRequest(str("--emulate: cannot read '", file_, "': ", error.what()));
    }
  }

  void read_columns(const std::vector<std::string>& names) {
    const auto has = [](const std::vector<std::string>& all, const std::string& name) {
      return std::find(all.begin(), all.end(), name) != all.end();
    };
    std::vector<std::string> known{kBlocks};
    std::string list = kBlocks;
    for (const auto& [name, field] : kColumns) {
      if (!has(names, name)) refuse(str("the column ", name, " is missing"));
      known.emplace_back(name);
      list += str(", ", name);
    }
    for (const std::string& name : names) {
      if (!has(known, name)) refuse(str("'", name, "' is no column; allowed: ", list));
      if (has(columns_, name)) refuse(str("the column ", name, " is there twice"));
      columns_.push_back(name);
    }
  }

  void read_kind(const std::vector<std::string>& cells, std::vector<BlockTimes>& blocks) const {
    if (cells.size() != columns_.size()) refuse(str(cells.size(), " values for ", columns_.size(), " columns"));
    BlockTimes kind;
    int count = 1;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (columns_[i] == kBlocks) {
        count = parse_number<int>(cells[i]).value_or(0);
        if (count < 1 || count > kMaxBlocks) refuse(str(kBlocks, " is '", cells[i], "'; allowed: 1 to ", kMaxBlocks));
        continue;
      }
      const auto column =
          std::find_if(kColumns.begin(), kColumns.end(), [&](const auto& known) { return known.first == columns_[i]; });
      kind.*column->second = milliseconds(*column, cells[i]);
    }
    blocks.insert(blocks.end(), count, kind);
  }

  double milliseconds(const std::pair<const char*, double BlockTimes::*>& column, const std::string& cell) const {
    const std::optional<double> value = parse_number<double>(cell);
    const bool is_pass = column.second == &BlockTimes::forward || column.second == &BlockTimes::backward;
    if (!value || !std::isfinite(*value) || *value < 0 || (is_pass && *value == 0))
      refuse(str(column.first, " is '", cell, "'; allowed: milliseconds ", is_pass ? "above 0" : "from 0 on"));
    return *value;
  }

  const std::string file_;
  int line_ = 0;
  std::vector<std::string> columns_;
};

}  // namespace

BlockList bert_base(int blocks) {
  return {"BERT-Base on one P100", std::vector<BlockTimes>(blocks, runtime::kBertBase)};
}

BlockList read_blocks(const std::string& file) {
  return {file, Reader(file).read()};
}

}  // namespace spillway::tools
