#include "ddl/allreduce/allreduce.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/agreement.h"

namespace spillway::ddl {
namespace {

constexpr size_t kMaxPrograms = 256;

Operation operation_of(Reduction reduction) {
  static constexpr std::array kOperations{Operation::allreduce_sum, Operation::allreduce_average,
                                          Operation::allreduce_maximum, Operation::allreduce_minimum};
  return kOperations[static_cast<size_t>(reduction)];
}

}  // namespace

Allreduce::Allreduce(Communicator& comm, Plan plan, AllreduceOptions options)
    : comm_(comm), plan_(std::move(plan)), name_(plan_.name()), executor_(comm, std::move(options)) {
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

Executor::Programs Allreduce::programs(Element element) {
  return [this, element](Range range) -> const Program& { return program(range.size(), element); };
}

int64_t Allreduce::scratch_bytes(int64_t count, Element element) {
  return executor_.scratch_bytes(count, element, /*apart=*/false, programs(element));
}

void Allreduce::reduce(const ReduceBuffers& vector, Reduction reduction, uint64_t signature) {
  own_scratch_.resize(std::max<size_t>(own_scratch_.size(), scratch_bytes(vector.count(), vector.element)));
  reduce(vector, reduction, own_scratch_, signature);
}

void Allreduce::reduce(const ReduceBuffers& vector, Reduction reduction, std::span<std::byte> scratch,
                       uint64_t signature) {
  const int64_t count = vector.count();
  if (vector.input.size() != vector.output.size())
    throw BadRequest(
        str("[ddl] allreduce of ", vector.input.size(), " bytes into ", vector.output.size(), "; required: as many"));
  if (const int64_t needed = scratch_bytes(count, vector.element); std::ssize(scratch) < needed)
    throw BadRequest(
        str("[ddl] allreduce of ", count, " elements with ", scratch.size(), " bytes of scratch; required: ", needed));
  const auto start = std::chrono::steady_clock::now();
  for (const int64_t bytes : executor_.options().segment_bytes) signature = hash_in(signature, bytes);
  signature = hash_in(hash_in(signature, plan_.hash()), executor_.options().chunk_bytes);
  signature = hash_in(hash_in(signature, vector.element), reduction);
  const Call call{operation_of(reduction), -1, count, signature};
  Agreement agreement(comm_, call.with_detail({name_of(vector.element), " by ", name_}));
  executor_.run(vector, reduction, scratch.data(), /*apart=*/false, programs(vector.element), agreement);
  ++totals_.calls;
  totals_.bytes += std::ssize(vector.output);
  totals_.time += std::chrono::steady_clock::now() - start;
  totals_.rounds = executor_.times();
  if (programs_.size() > kMaxPrograms) programs_.clear();
}

}  // namespace spillway::ddl
