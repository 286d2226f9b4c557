#include "ddl/allreduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "ddl/agreement.h"
#include "ddl/arithmetic.h"

namespace spillway::ddl {
namespace {

constexpr int64_t kAlignment = 64;
/// Chunks with scratch at once, however many rounds a plan has.
constexpr int kMostLanes = 4;
constexpr size_t kMostPrograms = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t quotient_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Operation operation_of(Reduction reduction) {
  static constexpr std::array kOperations{Operation::allreduce_sum, Operation::allreduce_average,
                                          Operation::allreduce_maximum, Operation::allreduce_minimum};
  return kOperations[static_cast<size_t>(reduction)];
}

}  // namespace

void AllreduceOptions::validate() const {
  if (chunk_bytes < 1024 || chunk_bytes > int64_t{1} << 30) {
    throw BadRequest(str("[ddl] chunk_bytes is ", chunk_bytes, "; allowed: 1024 (1 KiB) to 1073741824 (1 GiB)"));
  }
  for (const int64_t bytes : piece_bytes)
    if (bytes < 1024) throw BadRequest(str("[ddl] piece_bytes is ", bytes, "; allowed: 1024 (1 KiB) and more"));
}

Allreduce::Allreduce(Communicator& comm, Plan plan, AllreduceOptions options)
    : comm_(comm), options_((options.validate(), options)), plan_(std::move(plan)), name_(plan_.name()) {
  if (plan_.size() != comm_.size())
    throw BadRequest(
        str("[ddl] a plan for ", plan_.size(), " ranks; required: ", comm_.size(), ", as many as there are"));
}

Allreduce::Allreduce(Communicator& comm, AllreduceOptions options)
    : Allreduce(comm, Plan(comm.levels()), std::move(options)) {}

const Program& Allreduce::program(int64_t count, Element element) {
  const auto known = programs_.find({count, element});
  if (known != programs_.end()) return known->second;
  return programs_.emplace(std::pair(count, element), plan_.program(comm_.rank(), count, element)).first->second;
}

Allreduce::Pipeline Allreduce::pipeline(int64_t count, Element element) {
  Pipeline p;
  p.chunk_elements = std::min(std::max<int64_t>(1, count), options_.chunk_bytes / element_bytes(element));
  p.chunks = quotient_up(count, p.chunk_elements);
  const Program& whole = program(p.chunk_elements, element);
  p.rounds = static_cast<int>(whole.rounds.size());
  p.stride = std::max(1, static_cast<int>(quotient_up(whole.collecting_rounds, kMostLanes)));
  // A lane is free again once its chunk's contributions are collected.
  p.lanes = static_cast<int>(
      std::clamp<int64_t>(quotient_up(whole.collecting_rounds, p.stride), 1, std::max<int64_t>(1, p.chunks)));
  const bool apart = partial_bytes(element) != element_bytes(element);
  p.partial_bytes = apart ? aligned(p.chunk_elements * ddl::partial_bytes(element)) : 0;
  int64_t scratch = whole.scratch_bytes;
  if (const int64_t rest = count % p.chunk_elements; rest > 0)  // of uneven parts a shorter vector's may be longer
    scratch = std::max(scratch, program(rest, element).scratch_bytes);
  p.lane_bytes = p.partial_bytes + aligned(scratch);
  return p;
}

int64_t Allreduce::scratch_bytes(int64_t count, Element element) {
  const Pipeline p = pipeline(count, element);
  return p.lanes * p.lane_bytes;
}

void Allreduce::reduce(const Vector& vector, Reduction reduction, uint64_t signature) {
  own_scratch_.resize(std::max<size_t>(own_scratch_.size(), scratch_bytes(vector.count(), vector.element)));
  reduce(vector, reduction, own_scratch_, signature);
}

void Allreduce::reduce(const Vector& vector, Reduction reduction, std::span<std::byte> scratch, uint64_t signature) {
  const int64_t count = vector.count();
  if (vector.input.size() != vector.output.size())
    throw BadRequest(
        str("[ddl] allreduce of ", vector.input.size(), " bytes into ", vector.output.size(), "; required: as many"));
  if (const int64_t needed = scratch_bytes(count, vector.element); static_cast<int64_t>(scratch.size()) < needed)
    throw BadRequest(
        str("[ddl] allreduce of ", count, " elements with ", scratch.size(), " bytes of scratch; required: ", needed));
  const auto start = std::chrono::steady_clock::now();
  for (const int64_t bytes : options_.piece_bytes) signature = hash_in(signature, static_cast<uint64_t>(bytes));
  for (const uint64_t part : {plan_.hash(), static_cast<uint64_t>(options_.chunk_bytes),
                              static_cast<uint64_t>(vector.element), static_cast<uint64_t>(reduction)})
    signature = hash_in(signature, part);
  const Call call{operation_of(reduction), -1, count, signature};
  Agreement agreement(comm_, call.with_detail({name_of(vector.element), " by ", name_}));
  run(vector, reduction, scratch.data(), agreement);
  ++totals_.calls;
  totals_.bytes += static_cast<int64_t>(vector.output.size());
  totals_.time += std::chrono::steady_clock::now() - start;
  if (programs_.size() > kMostPrograms) programs_.clear();
}

// At time t chunk c is in round t − c·stride, the oldest chunk first: the same order on every rank, so messages match.
// The first messages leave before the ranks have agreed, and are looked at afterwards.
void Allreduce::run(const Vector& vector, Reduction reduction, std::byte* scratch, Agreement& agreement) {
  if (vector.count() == 0) return agreement.conclude();
  const Pipeline p = pipeline(vector.count(), vector.element);
  const int in_flight = p.rounds / p.stride + 1;
  if (static_cast<int>(chunks_.size()) < in_flight) chunks_.resize(static_cast<size_t>(in_flight));
  const int64_t end = (p.chunks - 1) * p.stride + p.rounds;
  for (int64_t time = 0; time <= end; ++time) {
    const int64_t oldest = std::max<int64_t>(0, quotient_up(time - p.rounds, p.stride));
    for (int64_t index = oldest; index < p.chunks && index * p.stride <= time; ++index) {
      Chunk& chunk = chunks_[static_cast<size_t>(index % in_flight)];
      const auto round = static_cast<int>(time - index * p.stride);
      if (round == 0) open(chunk, vector, p, index, scratch);
      enter(chunk, round, vector.element, reduction);
    }
    if (time == 0) agreement.conclude();
  }
}

void Allreduce::open(Chunk& chunk, const Vector& vector, const Pipeline& p, int64_t index, std::byte* scratch) {
  const int64_t begin = index * p.chunk_elements, count = std::min(p.chunk_elements, vector.count() - begin);
  const int64_t offset = begin * element_bytes(vector.element);
  std::byte* lane = scratch + index % p.lanes * p.lane_bytes;
  chunk.program = &program(count, vector.element);
  chunk.input = vector.input.data() + offset;
  chunk.output = vector.output.data() + offset;
  chunk.partial = p.partial_bytes > 0 ? lane : chunk.output;
  chunk.scratch = lane + p.partial_bytes;
}

// Ends the round before, and begins this one.
void Allreduce::enter(Chunk& chunk, int round, Element element, Reduction reduction) {
  const Program& program = *chunk.program;
  if (round > 0) {
    const Round& last = program.rounds[static_cast<size_t>(round) - 1];
    comm_.wait(chunk.requests,
               {last.gather ? "all-gather" : "reduce-scatter", last.level, plan_.levels().count(), round});
    sum(chunk, last, element, reduction);
  }
  chunk.requests.clear();
  if (round == program.collecting_rounds) {
    const bool alone = plan_.size() == 1;
    for (const Range& range : program.finished)
      if (alone && element_bytes(element) != partial_bytes(element))
        std::memmove(chunk.output + range.begin * element_bytes(element),
                     chunk.input + range.begin * element_bytes(element), range.size() * element_bytes(element));
      else
        finish(element, reduction, chunk.output + range.begin * element_bytes(element),
               (alone ? chunk.input : chunk.partial) + range.begin * partial_bytes(element), range.size(),
               plan_.size());
  }
  if (round < static_cast<int>(program.rounds.size())) post(chunk, program.rounds[static_cast<size_t>(round)], element);
}

void Allreduce::post(Chunk& chunk, const Round& round, Element element) {
  const auto bytes_of = [&](const Transfer& t) { return t.partial ? partial_bytes(element) : element_bytes(element); };
  const auto level = static_cast<size_t>(round.level) - 1;
  const auto piece = static_cast<size_t>(level < options_.piece_bytes.size() ? options_.piece_bytes[level] : kWhole);
  const Tag tag = round.gather ? Tag::gather : Tag::reduce;
  const auto for_each_piece = [&](auto bytes, const auto& start) {
    for (size_t begin = 0; begin < bytes.size(); begin += piece)
      chunk.requests.push_back(start(bytes.subspan(begin, std::min(piece, bytes.size() - begin))));
  };
  for (const Transfer& t : round.receives) {
    std::byte* to = t.place == Place::scratch ? chunk.scratch + t.offset : chunk.output + t.range.begin * bytes_of(t);
    for_each_piece(std::span(to, static_cast<size_t>(t.range.size() * bytes_of(t))),
                   [&](std::span<std::byte> bytes) { return comm_.receive(t.peer, tag, bytes); });
  }
  for (const Transfer& t : round.sends) {
    const std::byte* from = t.place == Place::input     ? chunk.input
                            : t.place == Place::partial ? chunk.partial
                                                        : chunk.output;
    from += t.range.begin * bytes_of(t);
    for_each_piece(std::span(from, static_cast<size_t>(t.range.size() * bytes_of(t))),
                   [&](std::span<const std::byte> bytes) { return comm_.send(t.peer, tag, bytes); });
  }
}

void Allreduce::sum(const Chunk& chunk, const Round& round, Element element, Reduction reduction) {
  for (const Combination& combination : round.sums) {
    terms_.clear();
    const int64_t begin = combination.range.begin;
    for (const auto& source : combination.sources) {
      const std::byte* data = source.place == Place::scratch ? chunk.scratch + source.offset
                              : source.place == Place::input ? chunk.input + begin * element_bytes(element)
                                                             : chunk.partial + begin * partial_bytes(element);
      terms_.push_back({data, source.partial});
    }
    combine(element, reduction, chunk.partial + begin * partial_bytes(element), terms_, combination.range.size());
  }
}

}  // namespace spillway::ddl
