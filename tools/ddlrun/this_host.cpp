#include "tools/ddlrun/this_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

namespace spillway::ddlrun {
namespace {

/// Returns the first part of a name, up to a dot.
std::string label(const std::string& name) {
  return name.substr(0, name.find('.'));
}

std::string own_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// Returns an address as text; empty when it is no internet address.
std::string address_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  if (address->sa_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

bool is_own_address(const std::string& address) {
  if (address.starts_with("127.") || address == "::1") return true;
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(raw, &::freeifaddrs);
  for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next)
    if (!address.empty() && address_of(one->ifa_addr) == address) return true;
  return false;
}

bool leads_here(const std::string& name, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &raw) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(raw, &::freeaddrinfo);
  for (const addrinfo* one = all.get(); one != nullptr; one = one->ai_next)
    if (is_own_address(address_of(one->ai_addr))) return true;
  return false;
}

}  // namespace

bool is_this_host(const std::string& name) {
  const std::string own = own_name();
  if (name == "localhost" || name == own || name == label(own) || leads_here(name, AI_NUMERICHOST)) return true;
  return label(name) == label(own) && leads_here(name, 0);
}

}  // namespace spillway::ddlrun
