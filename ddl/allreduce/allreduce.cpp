#include "ddl/allreduce/allreduce.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "core/out_of_memory.h"
#include "ddl/allreduce/executor.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {
namespace {

constexpr size_t kMaxPrograms = 256;

Operation operation_of(Reduction reduction) {
  static constexpr std::array kOperations{Operation::allreduce_sum, Operation::allreduce_average,
                                          Operation::allreduce_maximum, Operation::allreduce_minimum};
  return kOperations[static_cast<size_t>(reduction)];
}

}  // namespace

/// The programs and work lists of an allreduce, kept between calls.
struct Allreduce::Impl {
  Impl(Communicator& given, Plan chosen, AllreduceOptions options)
      : comm(given), plan(std::move(chosen)), name(plan.name()), executor(comm, std::move(options)) {
    if (plan.size() != comm.size())
      throw BadRequest(
          str("[ddl] a plan for ", plan.size(), " ranks; required: ", comm.size(), ", as many as there are"));
  }

  const Program& program(int64_t count, Element element) {
    const auto known = by_size.find({count, element});
    if (known != by_size.end()) return known->second;
    return by_size.emplace(std::pair(count, element), plan.program(comm.rank(), count, element)).first->second;
  }
  Executor::Programs programs(Element element) {
    return [this, element](Range range) -> const Program& { return program(range.size(), element); };
  }

  Communicator& comm;
  const Plan plan;
  const std::string name;
  Executor executor;
  AllreduceTotals totals;
  std::map<std::pair<int64_t, Element>, Program> by_size;
  std::vector<std::byte> scratch;
};

Allreduce::Allreduce(Communicator& comm, Plan plan, AllreduceOptions options)
    : impl_(std::make_unique<Impl>(comm, std::move(plan), std::move(options))) {}

Allreduce::Allreduce(Communicator& comm, AllreduceOptions options)
    : Allreduce(comm, Plan(comm.levels()), std::move(options)) {}

Allreduce::~Allreduce() = default;

const Plan& Allreduce::plan() const noexcept {
  return impl_->plan;
}

const AllreduceOptions& Allreduce::options() const noexcept {
  return impl_->executor.options();
}

const AllreduceTotals& Allreduce::totals() const noexcept {
  return impl_->totals;
}

int64_t Allreduce::scratch_bytes(int64_t count, Element element) {
  return impl_->executor.scratch_bytes(count, element, /*apart=*/false, impl_->programs(element));
}

void Allreduce::reduce(const ReduceBuffers& vector, Reduction reduction, uint64_t signature) {
  std::vector<std::byte>& scratch = impl_->scratch;
  const int64_t needed = scratch_bytes(vector.count(), vector.element);
  naming_who_allocates("the scratch of an allreduce", needed,
                       [&] { scratch.resize(std::max<size_t>(scratch.size(), needed)); });
  reduce(vector, reduction, scratch, signature);
}

void Allreduce::reduce(const ReduceBuffers& vector, Reduction reduction, std::span<std::byte> scratch,
                       uint64_t signature, std::string_view detail) {
  const int64_t count = vector.count();
  if (vector.input.size() != vector.output.size())
    throw BadRequest(
        str("[ddl] allreduce of ", vector.input.size(), " bytes into ", vector.output.size(), "; required: as many"));
  if (const int64_t needed = scratch_bytes(count, vector.element); std::ssize(scratch) < needed)
    throw BadRequest(
        str("[ddl] allreduce of ", count, " elements with ", scratch.size(), " bytes of scratch; required: ", needed));
  const auto start = std::chrono::steady_clock::now();
  for (const int64_t bytes : options().segment_bytes) signature = hash_in(signature, bytes);
  signature = hash_in(hash_in(signature, plan().hash()), options().chunk_bytes);
  signature = hash_in(hash_in(signature, vector.element), reduction);
  const Call call{operation_of(reduction), -1, count, signature};
  Agreement agreement(
      impl_->comm, call.with_detail({name_of(vector.element), detail.empty() ? "" : " ", detail, " by ", impl_->name}));
  impl_->executor.run(vector, reduction, scratch.data(), /*apart=*/false, impl_->programs(vector.element), agreement);
  AllreduceTotals& totals = impl_->totals;
  ++totals.calls;
  totals.bytes += std::ssize(vector.output);
  totals.time += std::chrono::steady_clock::now() - start;
  totals.rounds = impl_->executor.times();
  if (impl_->by_size.size() > kMaxPrograms) impl_->by_size.clear();
}

}  // namespace spillway::ddl
