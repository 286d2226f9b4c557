/// Which names mean the host that this process runs on.
#pragma once
#include <string>

namespace spillway::ddlrun {

/// Whether `name` is this host: a loopback, its hostname, an address of one of its interfaces, or a name that begins
/// with its hostname and leads to such an address. Only the last asks the network's name service.
bool is_this_host(const std::string& name);

}  // namespace spillway::ddlrun
