// The installed MPI's own collectives, to compare with.
// The deprecated C++ bindings would add a library and warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/error.h"
#include "ddl/comm/mpi.h"
#include "ddl/comm/mpi_runtime.h"

namespace spillway::ddl {
namespace {

MPI_Datatype type_of(Element element) noexcept {
  switch (element) {
    case Element::float32:
      return MPI_FLOAT;
    case Element::float64:
      return MPI_DOUBLE;
    case Element::int32:
      return MPI_INT32_T;
    case Element::int64:
      return MPI_INT64_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

/// Returns the type under which elements travel that are only moved: any type of as many bytes.
MPI_Datatype moved_as(Element element) noexcept {
  switch (element_bytes(element)) {
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

MPI_Op operation_of(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::sum:
      return MPI_SUM;
    case Reduction::maximum:
      return MPI_MAX;
    case Reduction::minimum:
      return MPI_MIN;
    default:
      return MPI_OP_NULL;
  }
}

}  // namespace

bool MpiRuntime::reduces(Element element, Reduction reduction) noexcept {
  return type_of(element) != MPI_DATATYPE_NULL && operation_of(reduction) != MPI_OP_NULL;
}

void MpiRuntime::allreduce(std::span<const std::byte> in, std::span<std::byte> out, Element element,
                           Reduction reduction) {
  if (!reduces(element, reduction))
    throw BadRequest(str("[ddl] MPI has no ", name_of(reduction), " of ", name_of(element),
                         "; allowed: sum, maximum and minimum of float32, float64, int32 and int64"));
  const MpiTurn turn(state_->taking_turns);
  // Counts are int, as in every MPI before 4.
  constexpr size_t kMax = size_t{1} << 30;
  const size_t element_size = element_bytes(element);
  for (size_t begin = 0; begin < out.size(); begin += kMax * element_size) {
    const size_t count = std::min(kMax, (out.size() - begin) / element_size);
    const void* from = in.data() == out.data() ? MPI_IN_PLACE : in.data() + begin;
    check_mpi(MPI_Allreduce(from, out.data() + begin, count, type_of(element), operation_of(reduction), MPI_COMM_WORLD),
              "MPI_Allreduce");
  }
}

void MpiRuntime::reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, const std::vector<int>& counts,
                                Element element, Reduction reduction) {
  if (!reduces(element, reduction))
    throw BadRequest(str("[ddl] MPI has no ", name_of(reduction), " of ", name_of(element)));
  const void* from = in.data() == out.data() ? MPI_IN_PLACE : in.data();
  check_mpi(
      MPI_Reduce_scatter(from, out.data(), counts.data(), type_of(element), operation_of(reduction), MPI_COMM_WORLD),
      "MPI_Reduce_scatter");
}

void MpiRuntime::all_gather(std::span<const std::byte> in, std::span<std::byte> out, const std::vector<int>& counts,
                            Element element) {
  std::vector<int> begins;
  std::exclusive_scan(counts.begin(), counts.end(), std::back_inserter(begins), 0);
  const bool in_place = in.data() >= out.data() && in.data() <= out.data() + out.size();
  const int count = std::ssize(in) / element_bytes(element);
  const MPI_Datatype type = moved_as(element);
  check_mpi(MPI_Allgatherv(in_place ? MPI_IN_PLACE : in.data(), count, type, out.data(), counts.data(), begins.data(),
                           type, MPI_COMM_WORLD),
            "MPI_Allgatherv");
}

void MpiRuntime::broadcast(std::span<std::byte> bytes, int root) {
  for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes)
    check_mpi(
        MPI_Bcast(bytes.data() + begin, std::min(kPieceBytes, bytes.size() - begin), MPI_BYTE, root, MPI_COMM_WORLD),
        "MPI_Bcast");
}

}  // namespace spillway::ddl
