/// The numbers that papers print.
#pragma once
#include <string>
#include <string_view>
#include <utility>

namespace spillway::runtime {

/// A table or a section of a paper: its rows in published.tsv.
class PublishedTable {
 public:
  /// `paper` and `place` as the file's first two columns have them, for example "KAISA" and "table 5".
  PublishedTable(std::string paper, std::string place) : paper_(std::move(paper)), place_(std::move(place)) {}

  /// Returns the number that stands there. Cost: reads the file's text from its start. Throws std::logic_error naming
  /// the row where it is not in the file, stands there twice with other numbers, or is no number.
  double at(std::string_view row, std::string_view column) const;

 private:
  std::string paper_, place_;
};

}  // namespace spillway::runtime
