#include "tools/ddlrun/shell.h"

#include <unistd.h>

#include <cctype>
#include <filesystem>

#include "core/error.h"
#include "tools/ddlrun/hosts.h"

namespace spillway::ddlrun {
namespace {

bool is_plain(const std::string& word) {
  return !word.empty() &&
         word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,=@%") ==
             std::string::npos;
}

bool is_executable(const std::string& file) {
  std::error_code none;
  return std::filesystem::is_regular_file(file, none) && ::access(file.c_str(), X_OK) == 0;
}

}  // namespace

std::string quoted(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    if (is_plain(word)) {
      parts.push_back(word);
      continue;
    }
    std::string part = "'";
    for (const char c : word) part += c == '\'' ? std::string("'\\''") : std::string(1, c);
    parts.push_back(part + "'");
  }
  return join(parts, " ");
}

std::vector<std::string> unquoted(const std::string& text, const std::string& what) {
  std::vector<std::string> words;
  bool begun = false;
  char quote = 0;
  const auto put = [&](char c) {
    if (!begun) words.emplace_back();
    begun = true;
    words.back() += c;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      put(text[++i]);
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      if (!begun) words.emplace_back();
      begun = true;
    } else if (quote == 0 && std::isspace(static_cast<unsigned char>(c))) {
      begun = false;
    } else {
      put(c);
    }
  }
  if (quote != 0)
    throw BadRequest(str(what, " is ", text, ", where ", quote, " has no end; allowed: words as a shell takes them"));
  return words;
}

std::string find_program(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) return is_executable(name) ? name : "";
  for (const std::string& folder : split(path, ':')) {
    std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable(file)) return file;
  }
  return "";
}

}  // namespace spillway::ddlrun
