/// The running of a function that may crash or hang its process.
#pragma once
#include <chrono>
#include <functional>
#include <string>

namespace spillway {

/// Runs `body` in a child process of its own and returns its result. Use it for libraries that crash or hang on a file
/// from an untrusted source. Only the calling thread exists in the child, so `body` must not wait for other threads.
/// The child's stderr is dropped. Throws BadRequest when `body` does. Throws BadRequest also when the child crashed,
/// ended with an exit code of its own, or did not end within `limit`; the message says so. Throws std::system_error
/// when no child can be made.
std::string in_child(const std::function<std::string()>& body, std::chrono::milliseconds limit);

}  // namespace spillway
