#include "ddl/sockets/greeting.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {

void addresses(std::string_view input) {
  const std::string secret = take_byte(input) % 2 == 0 ? "" : "a secret";
  try {
    const ddl::RankAddress address = ddl::parse_address(3, std::string(input), secret);
    require(ddl::parse_address(3, ddl::format_address(3, address, secret), secret) == address, "addresses are kept");
    require(address.unix_name.size() <= 107, "names are the system's");
  } catch (const std::runtime_error&) {  // it is refused
  }
}

}  // namespace spillway::fuzz
