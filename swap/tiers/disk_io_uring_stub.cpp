// The stub that CMake picks where liburing is absent.
#include "swap/tiers/disk_io.h"

namespace spillway::swap {

std::unique_ptr<DiskIo> make_uring_io(int, std::string& why_not) {
  why_not = "built without liburing";
  return nullptr;
}

}  // namespace spillway::swap
