#include "core/host/text_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace spillway {
namespace {

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF", kUtf16Marks[] = {"\xFF\xFE", "\xFE\xFF"};

std::string read_bytes(const std::filesystem::path& file, int64_t max_bytes) {
  if (std::error_code none; std::filesystem::is_directory(file, none)) throw BadRequest("it is a folder");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::string bytes;
  std::array<char, 1 << 16> part;
  while (in && std::ssize(bytes) <= max_bytes) {
    in.read(part.data(), part.size());
    bytes.append(part.data(), in.gcount());
  }
  if (std::ssize(bytes) > max_bytes) throw BadRequest(str("it is larger than ", max_bytes, " bytes"));
  if (!in.eof()) throw BadRequest(std::strerror(errno != 0 ? errno : EIO));
  return bytes;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& file, int64_t max_bytes) {
  std::string text = read_bytes(file, max_bytes);
  for (const std::string_view mark : kUtf16Marks)
    if (text.starts_with(mark)) throw BadRequest("it is UTF-16; save it as UTF-8");
  if (text.starts_with(kUtf8Mark)) text.erase(0, kUtf8Mark.size());
  size_t kept = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '\r' || (i + 1 < text.size() && text[i + 1] != '\n')) text[kept++] = text[i];
  text.resize(kept);
  return text;
}

}  // namespace spillway
