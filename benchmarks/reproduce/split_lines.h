/// Tables as text.
#pragma once
#include <algorithm>
#include <string_view>
#include <vector>

namespace spillway::runtime {

/// Returns the pieces of a text between separators; one empty piece of an empty text.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

/// Returns the fields of each line.
inline std::vector<std::vector<std::string_view>> split_lines(std::string_view text, char separator) {
  std::vector<std::vector<std::string_view>> lines;
  for (std::string_view line : split(text, '\n')) lines.push_back(split(line, separator));
  return lines;
}

}  // namespace spillway::runtime
