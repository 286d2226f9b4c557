/// The system's sockets: listeners, connections, and who is at their other end.
#pragma once
#include <cerrno>
#include <cstdint>
#include <string>

#include "ddl/sockets/socket.h"

namespace spillway::ddl {

/// Throws std::runtime_error with the system's text for `error`.
[[noreturn]] void fail_by_system(const std::string& what, int error = errno);
/// Returns a number that nobody guesses. Throws std::runtime_error.
uint64_t random_number();
/// Returns a text without blanks that is the same for processes which most likely reach each other's abstract Unix
/// sockets.
std::string host_identity();

/// Listens at a port that is free. Throws std::runtime_error.
Socket listen_by_tcp(const std::string& address);
Socket listen_by_unix(const std::string& name);
/// Returns the port where a listener listens.
std::string port_of(const Socket& listener);
/// Starts a connection. Empty: the other side cannot take one now; try again. Throws std::runtime_error.
Socket connect_by_tcp(const std::string& address, const std::string& port);
/// Throws std::runtime_error also where another user listens.
Socket connect_by_unix(const std::string& name);
/// Takes a connection; empty, with errno, where there is none.
Socket accept_from(const Socket& listener, bool tcp);

/// True where the process at the other end of a Unix socket is one of this process's user.
bool is_of_own_user(const Socket& socket);
/// True once the other side has closed the connection and nothing more is to be read. Never blocks.
bool has_ended(const Socket& socket);

/// Raises the number of descriptors that this process may have, as far as the system allows, so that `more` are left.
void allow_descriptors(int more);
/// Returns the number of descriptors that this process may have, for people.
std::string descriptor_limit();

}  // namespace spillway::ddl
