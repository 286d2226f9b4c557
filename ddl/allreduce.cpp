#include "ddl/allreduce.h"

#include <algorithm>

#include "core/error.h"
#include "ddl/agreement.h"
#include "ddl/ordered_sum.h"

namespace spillway::ddl {
namespace {

template <class T>
std::span<T> slice(std::span<T> vector, Range range) {
  return vector.subspan(range.begin, range.size());
}

}  // namespace

void AllreduceOptions::validate() const {
  if (chunk_bytes < 1024 || chunk_bytes > int64_t{1} << 30) {
    throw BadRequest(str("[ddl] chunk_bytes is ", chunk_bytes, "; allowed: 1024 (1 KiB) to 1073741824 (1 GiB)"));
  }
}

Allreduce::Allreduce(Communicator& comm, AllreduceOptions options)
    : comm_(comm),
      options_((options.validate(), options)),
      plan_(comm.hosts()),
      host_(plan_.host_of(comm.rank())),
      local_(plan_.local_rank_of(comm.rank())) {
  const auto most = std::max<size_t>(plan_.ranks_of(host_).size(), plan_.host_count());
  terms_.reserve(most);
  requests_.reserve(2 * (plan_.ranks_of(host_).size() + plan_.host_count() * plan_.block_count()));
}

int64_t Allreduce::scratch_elements(int64_t count) const {
  return plan_.scratch_elements(std::min<int64_t>(count, options_.chunk_bytes / sizeof(float)));
}

void Allreduce::reduce(std::span<float> data, Reduction reduction, uint64_t signature) {
  own_scratch_.resize(std::max<size_t>(own_scratch_.size(), scratch_elements(data.size())));
  reduce(data, reduction, own_scratch_, signature);
}

void Allreduce::reduce(std::span<float> data, Reduction reduction, std::span<float> scratch, uint64_t signature) {
  const auto count = static_cast<int64_t>(data.size());
  if (static_cast<int64_t>(scratch.size()) < scratch_elements(count)) {
    throw BadRequest(str("[ddl] allreduce of ", count, " elements with ", scratch.size(),
                         " floats of scratch; required: ", scratch_elements(count)));
  }
  const bool average = reduction == Reduction::average;
  signature = hash_in(hash_in(signature, plan_.hash()), options_.chunk_bytes);
  agree(comm_, {average ? Operation::allreduce_average : Operation::allreduce_sum, -1, count, signature});
  if (plan_.size() == 1) return;
  const auto chunk = static_cast<int64_t>(options_.chunk_bytes / sizeof(float));
  for (int64_t begin = 0; begin < count; begin += chunk) {
    reduce_chunk(slice(data, {begin, std::min(begin + chunk, count)}), average ? plan_.size() : 1.0f, scratch);
  }
}

void Allreduce::reduce_chunk(std::span<float> chunk, float divisor, std::span<float> scratch) {
  const bool one_host = plan_.host_count() == 1;
  scatter_within_host(chunk, one_host ? divisor : 1.0f, scratch);
  if (!one_host) {
    scatter_between_hosts(chunk, divisor, scratch);
    gather_between_hosts(chunk);
  }
  gather_within_host(chunk);
}

// y_i = Σ_j x_j over the ranks j of the host, on piece i; rank i computes it.
void Allreduce::scatter_within_host(std::span<float> chunk, float divisor, std::span<float> scratch) {
  const std::vector<int>& ranks = plan_.ranks_of(host_);
  const int width = static_cast<int>(ranks.size());
  if (width == 1) return;
  const auto count = static_cast<int64_t>(chunk.size());
  const auto own = slice(chunk, plan_.piece(host_, local_, count));
  terms_.assign(width, nullptr);
  terms_[local_] = own.data();
  for (int step = 1; step < width; ++step) {
    const int from = (local_ - step + width) % width;
    const int to = (local_ + step) % width;
    const auto incoming = scratch.subspan((step - 1) * own.size(), own.size());
    terms_[from] = incoming.data();
    receive(ranks[from], Tag::reduce, incoming);
    send(ranks[to], Tag::reduce, slice(chunk, plan_.piece(host_, to, count)));
  }
  wait({"reduce-scatter", plan_.host_level(), plan_.levels(), 1});
  ordered_sum(own.data(), terms_, static_cast<int64_t>(own.size()), divisor);
}

// z = Σ_h y_h over the hosts h, on the parts of this rank's blocks that its host is home to.
void Allreduce::scatter_between_hosts(std::span<float> chunk, float divisor, std::span<float> scratch) {
  const auto count = static_cast<int64_t>(chunk.size());
  const int hosts = plan_.host_count();
  const Range blocks = plan_.blocks_of(host_, local_);
  int64_t used = 0;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const int64_t home_size = plan_.part(block, host_, count).size();
    for (int step = 1; step < hosts; ++step) {
      const int from = (host_ - step + hosts) % hosts;
      const int to = (host_ + step) % hosts;
      receive(plan_.in_charge(from, block), Tag::reduce, scratch.subspan(used, home_size));
      send(plan_.in_charge(to, block), Tag::reduce, slice(chunk, plan_.part(block, to, count)));
      used += home_size;
    }
  }
  wait({"reduce-scatter", plan_.cross_level(), plan_.levels(), 2});
  const float* incoming = scratch.data();
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const auto home = slice(chunk, plan_.part(block, host_, count));
    terms_.assign(hosts, nullptr);
    terms_[host_] = home.data();
    for (int step = 1; step < hosts; ++step) {
      terms_[(host_ - step + hosts) % hosts] = incoming;
      incoming += home.size();
    }
    ordered_sum(home.data(), terms_, static_cast<int64_t>(home.size()), divisor);
  }
}

// Every host gets z back from the parts' homes.
void Allreduce::gather_between_hosts(std::span<float> chunk) {
  const auto count = static_cast<int64_t>(chunk.size());
  const int hosts = plan_.host_count();
  const Range blocks = plan_.blocks_of(host_, local_);
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    for (int step = 1; step < hosts; ++step) {
      const int from = (host_ - step + hosts) % hosts;
      const int to = (host_ + step) % hosts;
      receive(plan_.in_charge(from, block), Tag::gather, slice(chunk, plan_.part(block, from, count)));
      send(plan_.in_charge(to, block), Tag::gather, slice(chunk, plan_.part(block, host_, count)));
    }
  }
  wait({"all-gather", plan_.cross_level(), plan_.levels(), 3});
}

// Every rank gets the other pieces from the ranks of its host.
void Allreduce::gather_within_host(std::span<float> chunk) {
  const std::vector<int>& ranks = plan_.ranks_of(host_);
  const int width = static_cast<int>(ranks.size());
  const auto count = static_cast<int64_t>(chunk.size());
  for (int step = 1; step < width; ++step) {
    const int from = (local_ - step + width) % width;
    receive(ranks[from], Tag::gather, slice(chunk, plan_.piece(host_, from, count)));
    send(ranks[(local_ + step) % width], Tag::gather, slice(chunk, plan_.piece(host_, local_, count)));
  }
  wait({"all-gather", plan_.host_level(), plan_.levels(), 4});
}

void Allreduce::send(int peer, Tag tag, std::span<const float> floats) {
  if (!floats.empty()) requests_.push_back(comm_.send(peer, tag, std::as_bytes(floats)));
}

void Allreduce::receive(int peer, Tag tag, std::span<float> floats) {
  if (!floats.empty()) requests_.push_back(comm_.receive(peer, tag, std::as_writable_bytes(floats)));
}

void Allreduce::wait(const Stage& stage) {
  comm_.wait(requests_, stage);
  requests_.clear();
}

}  // namespace spillway::ddl
