/// The names of the host that this process runs on.
#pragma once
#include <string>

namespace spillway::ddlrun {

/// True when `name` is this host: a loopback, its hostname, or an address of one of its interfaces. A name that begins
/// with its hostname and resolves to such an address counts too. Only this last check asks the network's name service.
bool is_this_host(const std::string& name);

}  // namespace spillway::ddlrun
