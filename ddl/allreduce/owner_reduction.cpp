#include "ddl/allreduce/owner_reduction.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/agreement.h"

namespace spillway::ddl {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kMinChunkBytes = int64_t{1} << 16;
constexpr int64_t kMaxScratchBytes = int64_t{8} << 20;

void validate(const Communicator& comm, int64_t count, std::span<const OwnedPart> parts) {
  int64_t end = 0;
  for (const OwnedPart& part : parts) {
    const auto [begin, part_end] = part.range;
    if (begin < end || part_end < begin || part_end > count || part.owner < 0 || part.owner >= comm.size())
      throw BadRequest(str("[ddl] a reduction: part [", begin, ", ", part_end, ") at home ", part.owner,
                           "; allowed: "
                           "ascending parts of ",
                           count, " elements, homes from 0 to ", comm.size() - 1));
    end = part_end;
  }
}

/// Returns the bytes of a chunk. An owner that has all of a chunk receives one chunk from every other child of its
/// group, so more children make chunks smaller.
int64_t chunk_bytes(const Levels& levels) {
  int64_t children = 2;
  for (int level = 1; level <= levels.count(); ++level)
    for (const auto& group : levels.groups(level)) children = std::max(children, std::ssize(group.children));
  return std::clamp(kMaxScratchBytes / (children - 1), kMinChunkBytes, kChunkBytes);
}

void require_count(std::span<const std::byte> data, int64_t count, Element element) {
  if (std::ssize(data) != count * element_bytes(element))
    throw BadRequest(str("[ddl] ", data.size(), " bytes for ", count, " elements of ", name_of(element)));
}

void require_scratch(std::span<std::byte> scratch, int64_t needed) {
  if (std::ssize(scratch) < needed)
    throw BadRequest(str("[ddl] a reduction with ", scratch.size(), " bytes of scratch; required: ", needed));
}

}  // namespace

OwnerReduction::OwnerReduction(Communicator& comm, int64_t count, Element element, std::vector<OwnedPart> parts,
                               std::vector<int64_t> segment_bytes)
    : comm_(comm),
      count_(count),
      element_(element),
      parts_((validate(comm, count, parts), std::move(parts))),
      signature_(hash_in(kHashSeed, comm.levels().hash())),
      executor_(comm, {.chunk_bytes = chunk_bytes(comm.levels()), .segment_bytes = std::move(segment_bytes)}) {
  for (const OwnedPart& part : parts_)
    for (const int64_t number : {part.range.begin, part.range.end, int64_t{part.owner}})
      signature_ = hash_in(signature_, number);
}

Executor::Programs OwnerReduction::programs(std::vector<Program>& of_chunks, const Compile& compile) const {
  const int64_t step = executor_.chunk_elements(count_, element_);
  for (int64_t begin = std::ssize(of_chunks) * step; begin < count_; begin += step)
    of_chunks.push_back(compile(parts_within(parts_, {begin, std::min(begin + step, count_)})));
  return [&of_chunks, step](Range elements) -> const Program& { return of_chunks[elements.begin / step]; };
}

Executor::Programs OwnerReduction::reducing() {
  return programs(reduce_, [this](const std::vector<OwnedPart>& parts) {
    return reduce_program(comm_.levels(), comm_.rank(), parts, element_);
  });
}

Executor::Programs OwnerReduction::gathering() {
  return programs(gather_, [this](const std::vector<OwnedPart>& parts) {
    return gather_program(comm_.levels(), comm_.rank(), parts);
  });
}

Call OwnerReduction::call(Operation operation, uint64_t more) const {
  const Call call{operation, -1, count_, hash_in(hash_in(signature_, element_), more)};
  return call.with_detail({name_of(element_)});
}

int64_t OwnerReduction::reduce_scratch_bytes() {
  return executor_.scratch_bytes(count_, element_, /*apart=*/true, reducing());
}

void OwnerReduction::reduce(std::span<std::byte> data, Reduction reduction, std::span<std::byte> scratch) {
  require_count(data, count_, element_);
  require_scratch(scratch, reduce_scratch_bytes());
  Agreement agreement(comm_, call(Operation::reduce, static_cast<uint64_t>(reduction)));
  executor_.run(in_place(data, element_), reduction, scratch.data(), /*apart=*/true, reducing(), agreement);
}

void OwnerReduction::gather(std::span<std::byte> data) {
  require_count(data, count_, element_);
  Agreement agreement(comm_, call(Operation::gather, 0));
  executor_.run(in_place(data, element_), Reduction::sum, nullptr, /*apart=*/false, gathering(), agreement);
}

}  // namespace spillway::ddl
