#include "tools/cli/write_json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "core/json_text.h"
#include "core/new_file.h"

namespace spillway::tools {
namespace {

/// True for a link, a pipe or a device, which users name for what is behind it.
bool is_written_in_place(const std::string& file) {
  using enum std::filesystem::file_type;
  std::error_code ignored;
  const auto type = std::filesystem::symlink_status(file, ignored).type();
  return type == symlink || type == fifo || type == character || type == block || type == socket;
}

[[noreturn]] void fail(const std::string& file) {
  throw std::system_error(errno, std::generic_category(), str("cannot write '", file, "'"));
}

/// True when `file` is what stdout writes to.
bool is_stdout(const std::string& file) {
  struct stat named {};
  struct stat own {};
  return ::stat(file.c_str(), &named) == 0 && ::fstat(STDOUT_FILENO, &own) == 0 && named.st_dev == own.st_dev &&
         named.st_ino == own.st_ino;
}

/// Opens `file`. What is stdout already shares its position, because one text would overwrite the other.
File open_in_place(const std::string& file) {
  const bool shared = is_stdout(file);
  if (shared && std::fflush(stdout) != 0) fail(file);
  File out(shared ? ::dup(STDOUT_FILENO) : ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (out.get() < 0) fail(file);
  return out;
}

}  // namespace

void write_output(std::string_view text, const std::string& file) {
  if (is_written_in_place(file)) return write_all(open_in_place(file), text.data(), text.size(), file);
  NewFile fresh(file, Readers::everyone);
  fresh.write(text);
  fresh.commit();
}

void write_json(const nlohmann::json& value, const std::string& file) {
  write_output(json_text(value, 2) + "\n", file);
}

void check_writable(const std::string& file) {
  if (!is_written_in_place(file)) {
    const NewFile removed_at_once(file, Readers::everyone);
    return;
  }
  if (::access(file.c_str(), W_OK) != 0 && errno != ENOENT) fail(file);  // a link's file may be yet to come
}

}  // namespace spillway::tools
