/// Command lines as text.
#pragma once
#include <string>
#include <vector>

namespace spillway::ddlrun {

/// Returns one line that a POSIX shell splits into the same words.
std::string quoted(const std::vector<std::string>& words);

/// Splits text into words as a shell does: at blanks, except inside '…' or "…" or after a backslash. Nothing is
/// expanded. The second argument names the text in errors. Throws BadRequest when a quote has no end.
std::vector<std::string> unquoted(const std::string& text, const std::string& what);

/// The folders that a shell searches when PATH is not set.
inline constexpr const char* kDefaultPath = "/usr/bin:/bin";

/// Returns the file that a shell would run, or empty when there is none. It is `name` itself when it has a slash, else
/// the first executable in the folders of `path`.
std::string find_program(const std::string& name, const std::string& path);

}  // namespace spillway::ddlrun
