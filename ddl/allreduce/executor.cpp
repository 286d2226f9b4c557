#include "ddl/allreduce/executor.h"

#include <algorithm>
#include <cstring>

#include "core/clock.h"
#include "core/error.h"

namespace spillway::ddl {
namespace {

/// The maximum number of chunks that have scratch at once, however many rounds a program has.
constexpr int kMaxLanes = 4;

int64_t quotient_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

Executor::Executor(Communicator& comm, AllreduceOptions options)
    : comm_(comm), options_((options.validate(), std::move(options))) {}

int64_t Executor::chunk_elements(int64_t count, Element element) const {
  return std::min(std::max<int64_t>(1, count), options_.chunk_bytes / element_bytes(element));
}

Range Executor::Pipeline::chunk(int64_t index, int64_t count) const {
  return {index * chunk_elements, std::min((index + 1) * chunk_elements, count)};
}

Executor::Pipeline Executor::pipeline(int64_t count, Element element, bool apart, const Programs& programs) const {
  Pipeline p;
  p.chunk_elements = chunk_elements(count, element);
  p.chunks = quotient_up(count, p.chunk_elements);
  if (p.chunks == 0) return p;
  const Program& first = programs(p.chunk(0, count));
  p.rounds = std::ssize(first.rounds);
  p.stride = std::max<int64_t>(1, quotient_up(first.collecting_rounds, kMaxLanes));
  // A lane is free again once its chunk's contributions are collected.
  p.lanes = std::clamp<int64_t>(quotient_up(first.collecting_rounds, p.stride), 1, p.chunks);
  apart = apart || partial_bytes(element) != element_bytes(element);
  p.partial_bytes =
      apart && first.collecting_rounds > 0 ? align_scratch(p.chunk_elements * ddl::partial_bytes(element)) : 0;
  int64_t scratch = 0;  // with uneven parts a shorter chunk may need more
  for (int64_t i = 0; i < p.chunks; ++i) scratch = std::max(scratch, programs(p.chunk(i, count)).scratch_bytes);
  p.lane_bytes = p.partial_bytes + align_scratch(scratch);
  return p;
}

int64_t Executor::scratch_bytes(int64_t count, Element element, bool apart, const Programs& programs) const {
  const Pipeline p = pipeline(count, element, apart, programs);
  return p.lanes * p.lane_bytes;
}

// At time t chunk c is in round t − c·stride, the oldest chunk first: the same order on every rank, so messages match.
void Executor::run(const ReduceBuffers& vector, Reduction reduction, std::byte* scratch, bool apart,
                   const Programs& programs, Agreement& agreement) {
  const int64_t count = vector.count();
  if (count == 0 || comm_.is_simulated()) return agreement.conclude();
  const Pipeline p = pipeline(count, vector.element, apart, programs);
  const int in_flight = p.rounds / p.stride + 1;
  if (std::ssize(chunks_) < in_flight) chunks_.resize(in_flight);
  const int64_t end = (p.chunks - 1) * p.stride + p.rounds;
  for (int64_t time = 0; time <= end; ++time) {
    const int64_t oldest = std::max<int64_t>(0, quotient_up(time - p.rounds, p.stride));
    for (int64_t index = oldest; index < p.chunks && index * p.stride <= time; ++index) {
      Chunk& chunk = chunks_[index % in_flight];
      const int round = time - index * p.stride;
      if (round == 0) {
        chunk.program = &programs(p.chunk(index, count));
        open(chunk, vector, p, index, scratch);
        times_.waited.resize(chunk.program->levels);
      }
      enter(chunk, round, vector.element, reduction);
    }
    if (time == 0) agreement.conclude();
  }
}

void Executor::open(Chunk& chunk, const ReduceBuffers& vector, const Pipeline& p, int64_t index, std::byte* scratch) {
  const int64_t offset = index * p.chunk_elements * element_bytes(vector.element);
  std::byte* lane = scratch + index % p.lanes * p.lane_bytes;
  chunk.input = vector.input.data() + offset;
  chunk.output = vector.output.data() + offset;
  chunk.partial = p.partial_bytes > 0 ? lane : chunk.output;
  chunk.scratch = lane + p.partial_bytes;
}

// Ends the round before `round`, and begins `round`.
void Executor::enter(Chunk& chunk, int round, Element element, Reduction reduction) {
  const Program& program = *chunk.program;
  if (round > 0) {
    const Round& last = program.rounds[round - 1];
    const auto start = Clock::now();
    comm_.wait(chunk.requests, {last.gather ? "all-gather" : "reduce-scatter", last.level, program.levels, round});
    const auto here = Clock::now();
    times_.waited[last.level - 1] += here - start;
    sum(chunk, last, element, reduction);
    times_.adding += Clock::now() - here;
  }
  chunk.requests.clear();
  if (round == program.collecting_rounds) finish(chunk, element, reduction);
  if (round < std::ssize(program.rounds)) post(chunk, program.rounds[round], element);
}

void Executor::finish(const Chunk& chunk, Element element, Reduction reduction) {
  const bool alone = comm_.size() == 1;
  const int64_t bytes = element_bytes(element), of_partial = partial_bytes(element);
  for (const auto& [begin, end] : chunk.program->finished)
    if (alone && bytes != of_partial)
      std::memmove(chunk.output + begin * bytes, chunk.input + begin * bytes, (end - begin) * bytes);
    else
      ddl::finish(element, reduction, chunk.output + begin * bytes,
                  (alone ? chunk.input : chunk.partial) + begin * of_partial, end - begin, comm_.size());
}

void Executor::post(Chunk& chunk, const Round& round, Element element) {
  const auto bytes_of = [&](const Transfer& t) { return t.partial ? partial_bytes(element) : element_bytes(element); };
  const size_t level = round.level - 1;
  const size_t piece = level < options_.segment_bytes.size() ? options_.segment_bytes[level] : kWhole;
  const Tag tag = round.gather ? Tag::gather : Tag::reduce;
  const auto for_each_piece = [&](auto bytes, const auto& start) {
    for (size_t begin = 0; begin < bytes.size(); begin += piece)
      chunk.requests.push_back(start(bytes.subspan(begin, std::min(piece, bytes.size() - begin))));
  };
  for (const Transfer& t : round.receives) {
    std::byte* to =
        t.place == BufferKind::scratch ? chunk.scratch + t.offset : chunk.output + t.range.begin * bytes_of(t);
    for_each_piece(std::span(to, t.range.size() * bytes_of(t)),
                   [&](std::span<std::byte> bytes) { return comm_.receive(t.peer, tag, bytes); });
  }
  for (const Transfer& t : round.sends) {
    const std::byte* from = t.place == BufferKind::input     ? chunk.input
                            : t.place == BufferKind::partial ? chunk.partial
                                                             : chunk.output;
    from += t.range.begin * bytes_of(t);
    for_each_piece(std::span(from, t.range.size() * bytes_of(t)),
                   [&](std::span<const std::byte> bytes) { return comm_.send(t.peer, tag, bytes); });
  }
}

void Executor::sum(const Chunk& chunk, const Round& round, Element element, Reduction reduction) {
  for (const Combination& combination : round.sums) {
    terms_.clear();
    const int64_t begin = combination.range.begin;
    for (const auto& source : combination.sources) {
      const std::byte* data = source.place == BufferKind::scratch ? chunk.scratch + source.offset
                              : source.place == BufferKind::input ? chunk.input + begin * element_bytes(element)
                                                                  : chunk.partial + begin * partial_bytes(element);
      terms_.push_back({data, source.partial});
    }
    combine(element, reduction, chunk.partial + begin * partial_bytes(element), terms_, combination.range.size());
  }
}

}  // namespace spillway::ddl
