/// Work that may take its process down.
#pragma once
#include <chrono>
#include <functional>
#include <string>

namespace spillway {

/// Returns what `body` returns, which runs in a child process of its own: for libraries that crash or hang on a file
/// that a stranger wrote. Only the calling thread lives on in the child, so `body` must not wait for others. Its stderr
/// is dropped. Throws BadRequest as `body` does, or when the child crashed, ended with an exit code of its own, or did
/// not end within `limit`, and says which; std::system_error when there can be no child.
std::string in_child(const std::function<std::string()>& body, std::chrono::milliseconds limit);

}  // namespace spillway
