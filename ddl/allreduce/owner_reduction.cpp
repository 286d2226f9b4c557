#include "ddl/allreduce/owner_reduction.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/agreement.h"

namespace spillway::ddl {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kLeastChunkBytes = int64_t{1} << 16;
constexpr int64_t kMostScratchBytes = int64_t{8} << 20;

void validate(const Communicator& comm, int64_t count, std::span<const HomePart> parts) {
  int64_t end = 0;
  for (const HomePart& part : parts) {
    const auto [begin, part_end] = part.range;
    if (begin < end || part_end < begin || part_end > count || part.home < 0 || part.home >= comm.size())
      throw BadRequest(str("[ddl] a reduction: part [", begin, ", ", part_end, ") at home ", part.home,
                           "; allowed: "
                           "ascending parts of ",
                           count, " elements, homes from 0 to ", comm.size() - 1));
    end = part_end;
  }
}

/// Where a home has all of a chunk, it gets one from every other child of its group.
int64_t chunk_bytes(const Levels& levels) {
  size_t children = 2;
  for (int level = 1; level <= levels.count(); ++level)
    for (const auto& group : levels.groups(level)) children = std::max(children, group.children.size());
  return std::clamp(kMostScratchBytes / static_cast<int64_t>(children - 1), kLeastChunkBytes, kChunkBytes);
}

void require_count(std::span<const std::byte> data, int64_t count, Element element) {
  if (static_cast<int64_t>(data.size()) != count * element_bytes(element))
    throw BadRequest(str("[ddl] ", data.size(), " bytes for ", count, " elements of ", name_of(element)));
}

void require_scratch(std::span<std::byte> scratch, int64_t needed) {
  if (static_cast<int64_t>(scratch.size()) < needed)
    throw BadRequest(str("[ddl] a reduction with ", scratch.size(), " bytes of scratch; required: ", needed));
}

}  // namespace

HomeReduction::HomeReduction(Communicator& comm, int64_t count, Element element, std::vector<HomePart> parts,
                             std::vector<int64_t> piece_bytes)
    : comm_(comm),
      count_(count),
      element_(element),
      parts_((validate(comm, count, parts), std::move(parts))),
      signature_(hash_in(kHashSeed, comm.levels().hash())),
      executor_(comm, {.chunk_bytes = chunk_bytes(comm.levels()), .piece_bytes = std::move(piece_bytes)}) {
  for (const HomePart& part : parts_)
    for (const int64_t number : {part.range.begin, part.range.end, int64_t{part.home}})
      signature_ = hash_in(signature_, static_cast<uint64_t>(number));
}

Executor::Programs HomeReduction::programs(std::vector<Program>& of_chunks, const Compile& compile) const {
  const int64_t step = executor_.chunk_elements(count_, element_);
  for (int64_t begin = static_cast<int64_t>(of_chunks.size()) * step; begin < count_; begin += step)
    of_chunks.push_back(compile(parts_within(parts_, {begin, std::min(begin + step, count_)})));
  return [&of_chunks, step](Range elements) -> const Program& {
    return of_chunks[static_cast<size_t>(elements.begin / step)];
  };
}

Executor::Programs HomeReduction::reducing() {
  return programs(reduce_, [this](const std::vector<HomePart>& parts) {
    return reduce_program(comm_.levels(), comm_.rank(), parts, element_);
  });
}

Executor::Programs HomeReduction::gathering() {
  return programs(gather_, [this](const std::vector<HomePart>& parts) {
    return gather_program(comm_.levels(), comm_.rank(), parts);
  });
}

Call HomeReduction::call(Operation operation, uint64_t more) const {
  const Call call{operation, -1, count_, hash_in(hash_in(signature_, static_cast<uint64_t>(element_)), more)};
  return call.with_detail({name_of(element_)});
}

int64_t HomeReduction::reduce_scratch_bytes() {
  return executor_.scratch_bytes(count_, element_, /*apart=*/true, reducing());
}

void HomeReduction::reduce(std::span<std::byte> data, Reduction reduction, std::span<std::byte> scratch) {
  require_count(data, count_, element_);
  require_scratch(scratch, reduce_scratch_bytes());
  Agreement agreement(comm_, call(Operation::reduce, static_cast<uint64_t>(reduction)));
  executor_.run(in_place(data, element_), reduction, scratch.data(), /*apart=*/true, reducing(), agreement);
}

void HomeReduction::gather(std::span<std::byte> data) {
  require_count(data, count_, element_);
  Agreement agreement(comm_, call(Operation::gather, 0));
  executor_.run(in_place(data, element_), Reduction::sum, nullptr, /*apart=*/false, gathering(), agreement);
}

}  // namespace spillway::ddl
