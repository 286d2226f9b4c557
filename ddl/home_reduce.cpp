#include "ddl/home_reduce.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "ddl/agreement.h"
#include "ddl/arithmetic.h"

namespace spillway::ddl {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kLeastChunkBytes = int64_t{1} << 16;
constexpr int64_t kMostScratchBytes = int64_t{8} << 20;
/// Elements whose results stay in the first-level cache beside one block of a term.
constexpr int64_t kBlock = 1024;

int peer_of(const Communicator& comm, int step) {
  return (comm.rank() + step + comm.size()) % comm.size();
}

/// A vector and how it is cut; cheap to copy.
struct Cut {
  Communicator& comm;
  std::span<std::byte> data;
  int64_t bytes;  // of an element
  std::span<const HomePart> parts;
  std::span<std::byte> scratch;

  std::span<std::byte> bytes_of(Range range) const { return data.subspan(range.begin * bytes, range.size() * bytes); }
  bool at_home(const HomePart& part) const { return part.home == comm.rank(); }
};

constexpr Stage kScatter{.collective = "reduce-scatter", .level = 1, .levels = 1, .stage = 1};
constexpr Stage kGather{.collective = "all-gather", .level = 1, .levels = 1, .stage = 2};

void post_scatter(const Cut& cut, Tag tag, std::vector<Request>& requests) {
  int64_t used = 0;
  for (const HomePart& part : cut.parts) {
    const int64_t size = part.range.size() * cut.bytes;
    for (int step = 1; cut.at_home(part) && step < cut.comm.size(); ++step, used += size)
      requests.push_back(cut.comm.receive(peer_of(cut.comm, -step), tag, cut.scratch.subspan(used, size)));
    if (!cut.at_home(part)) requests.push_back(cut.comm.send(part.home, tag, cut.bytes_of(part.range)));
  }
}

void post_gather(const Cut& cut, Tag tag, std::vector<Request>& requests) {
  for (const HomePart& part : cut.parts) {
    if (!cut.at_home(part)) requests.push_back(cut.comm.receive(part.home, tag, cut.bytes_of(part.range)));
    for (int step = 1; cut.at_home(part) && step < cut.comm.size(); ++step)
      requests.push_back(cut.comm.send(peer_of(cut.comm, step), tag, cut.bytes_of(part.range)));
  }
}

/// How a vector's elements are reduced.
struct Kind {
  Element element;
  Reduction reduction;
};

/// Adds up all ranks' versions of some elements, as an Allreduce does whose plan keeps the order.
class TreeSum {
 public:
  TreeSum(const Levels& levels, Kind kind)
      : levels_(levels), kind_(kind), sums_(static_cast<size_t>(levels.count()) + 1) {}

  void add_up(std::byte* own, const std::vector<const std::byte*>& versions, int64_t count) {
    if (versions.size() == 1) return;
    const int64_t bytes = element_bytes(kind_.element);
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t size = std::min(kBlock, count - begin);
      const Term all = sum_of(levels_.count(), 0, versions, begin * bytes, size);
      finish(kind_.element, kind_.reduction, own + begin * bytes, all.data, size, levels_.size());
    }
  }

 private:
  struct Sum {
    alignas(8) std::array<std::byte, 8 * kBlock> values;
  };

  /// Of a group's ranks, which lies in sums_[level] until the next one of the level is taken.
  Term sum_of(int level, int group, const std::vector<const std::byte*>& versions, int64_t offset, int64_t size) {
    if (level == 0) return {versions[static_cast<size_t>(group)] + offset, false};
    std::byte* sum = sums_[static_cast<size_t>(level)].values.data();
    bool first = true;
    for (const int child : levels_.groups(level)[static_cast<size_t>(group)].children) {
      const std::array<Term, 2> terms{Term{sum, true}, sum_of(level - 1, child, versions, offset, size)};
      combine(kind_.element, kind_.reduction, sum, std::span(terms).subspan(first ? 1 : 0), size);
      first = false;
    }
    return {sum, true};
  }

  const Levels& levels_;
  const Kind kind_;
  std::vector<Sum> sums_;  // by level
};

void sum_at_home(const Cut& cut, Kind kind) {
  TreeSum sum(cut.comm.levels(), kind);
  const std::byte* incoming = cut.scratch.data();
  std::vector<const std::byte*> versions(static_cast<size_t>(cut.comm.size()));
  for (const HomePart& part : cut.parts) {
    if (!cut.at_home(part)) continue;
    std::byte* own = cut.bytes_of(part.range).data();
    versions[static_cast<size_t>(cut.comm.rank())] = own;
    for (int step = 1; step < cut.comm.size(); ++step, incoming += part.range.size() * cut.bytes)
      versions[static_cast<size_t>(peer_of(cut.comm, -step))] = incoming;
    sum.add_up(own, versions, part.range.size());
  }
}

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

int64_t scratch_elements(const Communicator& comm, std::span<const HomePart> parts) {
  int64_t own = 0;
  for (const HomePart& part : parts) own += part.home == comm.rank() ? part.range.size() : 0;
  return own * (comm.size() - 1);
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

std::vector<HomePart> flat_parts(int64_t count, int size, Element element) {
  std::vector<HomePart> parts;
  const int64_t chunk = kChunkBytes / element_bytes(element);
  for (int64_t begin = 0; begin < count; begin += chunk)
    for (const HomePart& part : equal_parts(std::min(chunk, count - begin), size))
      parts.push_back({{part.range.begin + begin, part.range.end + begin}, part.home});
  return parts;
}

PendingReduction::PendingReduction(Communicator& comm, std::span<std::byte> data, Element element,
                                   std::span<const HomePart> parts, std::span<std::byte> scratch)
    : comm_(comm), data_(data), element_(element), parts_(parts), scratch_(scratch) {
  const int64_t bytes = element_bytes(element);
  validate(comm, static_cast<int64_t>(data.size()) / bytes, parts);
  require_scratch(scratch, scratch_bytes(comm, element, parts));
  post_scatter({comm_, data_, bytes, parts_, scratch_}, Tag::early_reduce, requests_);
}

int64_t PendingReduction::scratch_bytes(const Communicator& comm, Element element, std::span<const HomePart> parts) {
  return scratch_elements(comm, parts) * element_bytes(element);
}

bool PendingReduction::arrived() {
  return comm_.test(requests_, gathering_ ? kGather : kScatter);
}

void PendingReduction::wait() {
  comm_.wait(requests_, gathering_ ? kGather : kScatter);
}

void PendingReduction::gather(bool everyone, Reduction reduction) {
  const Cut cut{comm_, data_, element_bytes(element_), parts_, scratch_};
  sum_at_home(cut, {element_, reduction});
  requests_.clear();
  gathering_ = true;
  if (everyone) post_gather(cut, Tag::early_gather, requests_);
}

}  // namespace spillway::ddl
