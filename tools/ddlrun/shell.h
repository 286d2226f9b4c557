/// Command lines as text.
#pragma once
#include <string>
#include <vector>

namespace spillway::ddlrun {

/// One line that a POSIX shell takes apart into the same words.
std::string quoted(const std::vector<std::string>& words);

/// Words as a shell parts them: by blanks, but for what is in '…' or "…" or follows a backslash; nothing is expanded.
/// `what` names the text in errors. Throws BadRequest when a quote has no end.
std::vector<std::string> unquoted(const std::string& text, const std::string& what);

/// Where a shell searches when PATH is not set.
inline constexpr const char* kDefaultPath = "/usr/bin:/bin";

/// The file that a shell would run: `name` itself when it has a slash, else the first executable in the folders of
/// `path`. Empty when there is none.
std::string find_program(const std::string& name, const std::string& path);

}  // namespace spillway::ddlrun
