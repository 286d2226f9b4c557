// The stand-in for mpi_runtime.cpp in a build without MPI.
#include <cstdlib>
#include <stdexcept>

#include "ddl/comm/mpi.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {

struct MpiRuntime::State {};

bool built_with_mpi() noexcept {
  return false;
}

MpiRuntime::MpiRuntime(std::chrono::milliseconds) {
  throw std::runtime_error("[ddl] this program was built without MPI (SPILLWAY_MPI=ON needs an MPI)");
}

MpiRuntime::~MpiRuntime() = default;

std::shared_ptr<Communicator> MpiRuntime::world(CommOptions) {
  throw std::runtime_error("[ddl] built without MPI");
}

std::unique_ptr<Transport> MpiRuntime::transport(std::chrono::milliseconds) {
  throw std::runtime_error("[ddl] built without MPI");
}

bool MpiRuntime::reduces(Element, Reduction) noexcept {
  return false;
}

void MpiRuntime::allreduce(std::span<const std::byte>, std::span<std::byte>, Element, Reduction) {
  throw std::runtime_error("[ddl] built without MPI");
}

void MpiRuntime::reduce_scatter(std::span<const std::byte>, std::span<std::byte>, const std::vector<int>&, Element,
                                Reduction) {
  throw std::runtime_error("[ddl] built without MPI");
}

void MpiRuntime::all_gather(std::span<const std::byte>, std::span<std::byte>, const std::vector<int>&, Element) {
  throw std::runtime_error("[ddl] built without MPI");
}

void MpiRuntime::broadcast(std::span<std::byte>, int) {
  throw std::runtime_error("[ddl] built without MPI");
}

std::string MpiRuntime::library() {
  return "built without MPI";
}

void MpiRuntime::abort(int code) noexcept {
  std::_Exit(code);
}

}  // namespace spillway::ddl
