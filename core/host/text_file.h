/// Files of text that people, editors and other programs wrote.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace spillway {

/// Returns the text of a file, or all that comes through a pipe, as if an editor on Linux had written it: without
/// UTF-8's byte order mark, and without \r before \n and the end. Throws BadRequest giving the reason alone, for the
/// caller to name the file: it cannot be read, is a folder, is larger than `max_bytes`, or is UTF-16.
std::string read_text_file(const std::filesystem::path& file, int64_t max_bytes = int64_t{64} << 20);

}  // namespace spillway
