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
  for (Chunk& chunk : chunks_) {
    chunk.requests.reserve(2 * (plan_.ranks_of(host_).size() + plan_.host_count() * plan_.block_count()));
  }
}

int64_t Allreduce::scratch_elements(int64_t count) const {
  const auto chunk = static_cast<int64_t>(options_.chunk_bytes / sizeof(float));
  return count <= chunk ? plan_.scratch_elements(count) : 2 * plan_.scratch_elements(chunk);
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
  const auto start = std::chrono::steady_clock::now();
  const bool average = reduction == Reduction::average;
  signature = hash_in(hash_in(signature, plan_.hash()), options_.chunk_bytes);
  agree(comm_, {average ? Operation::allreduce_average : Operation::allreduce_sum, -1, count, signature});
  if (plan_.size() > 1) {
    run_pipeline(data, average ? static_cast<float>(plan_.size()) : 1.0f, scratch);
  }
  ++totals_.calls;
  totals_.bytes += static_cast<int64_t>(data.size_bytes());
  totals_.time += std::chrono::steady_clock::now() - start;
}

// At time t chunk t-s takes step s, the oldest chunk first: the same order on every rank, so messages match.
void Allreduce::run_pipeline(std::span<float> data, float divisor, std::span<float> scratch) {
  const auto count = static_cast<int64_t>(data.size());
  const auto size = static_cast<int64_t>(options_.chunk_bytes / sizeof(float));
  const int64_t chunks = (count + size - 1) / size;
  const int64_t lane = plan_.scratch_elements(std::min(count, size));
  for (int64_t time = 0; time < chunks + steps() - 1; ++time) {
    for (int step = steps() - 1; step >= 0; --step) {
      const int64_t index = time - step;
      if (index < 0 || index >= chunks) continue;
      Chunk& chunk = chunks_[index % kMostSteps];
      if (step == 0) {
        chunk.data = slice(data, {index * size, std::min((index + 1) * size, count)});
        // Scratch is free again after step 2, which chunk index-2 has just taken.
        chunk.scratch = scratch.subspan(index % 2 * lane, lane);
      }
      advance(chunk, step, divisor);
    }
  }
}

void Allreduce::advance(Chunk& chunk, int step, float divisor) {
  struct Awaited {
    std::string_view collective;
    bool between_hosts;
  };
  static constexpr std::array<Awaited, kMostSteps - 1> kAwaited{
      {{"reduce-scatter", false}, {"reduce-scatter", true}, {"all-gather", true}, {"all-gather", false}}};
  const bool one_host = plan_.host_count() == 1;
  const int stage = one_host && step == 2 ? 4 : step;
  if (stage > 0) {
    const auto [collective, between_hosts] = kAwaited[stage - 1];
    const int level = between_hosts ? plan_.cross_level() : plan_.host_level();
    comm_.wait(chunk.requests, {collective, level, plan_.levels(), stage});
  }
  chunk.requests.clear();
  switch (stage) {
    case 0:
      return post_scatter_within_host(chunk);
    case 1:
      sum_within_host(chunk, one_host ? divisor : 1.0f);
      return one_host ? post_gather_within_host(chunk) : post_scatter_between_hosts(chunk);
    case 2:
      sum_between_hosts(chunk, divisor);
      return post_gather_between_hosts(chunk);
    case 3:
      return post_gather_within_host(chunk);
  }
}

// Rank i of a host gets piece i of x_j from the other ranks j of the host …
void Allreduce::post_scatter_within_host(Chunk& chunk) {
  const std::vector<int>& ranks = plan_.ranks_of(host_);
  const int width = static_cast<int>(ranks.size());
  const auto count = static_cast<int64_t>(chunk.data.size());
  const int64_t size = plan_.piece(host_, local_, count).size();
  for (int step = 1; step < width; ++step) {
    const int from = (local_ - step + width) % width;
    const int to = (local_ + step) % width;
    receive(chunk, ranks[from], Tag::reduce, chunk.scratch.subspan((step - 1) * size, size));
    send(chunk, ranks[to], Tag::reduce, plan_.piece(host_, to, count));
  }
}

// … and computes y = Σ_j x_j there.
void Allreduce::sum_within_host(Chunk& chunk, float divisor) {
  const int width = static_cast<int>(plan_.ranks_of(host_).size());
  if (width == 1) return;
  const auto own = slice(chunk.data, plan_.piece(host_, local_, static_cast<int64_t>(chunk.data.size())));
  terms_.assign(width, own.data());
  for (int step = 1; step < width; ++step) {
    terms_[(local_ - step + width) % width] = chunk.scratch.data() + (step - 1) * own.size();
  }
  ordered_sum(own.data(), terms_, static_cast<int64_t>(own.size()), divisor);
}

// In each block of its piece a rank gets the part that its host is home to from the other hosts h …
void Allreduce::post_scatter_between_hosts(Chunk& chunk) {
  const auto count = static_cast<int64_t>(chunk.data.size());
  const int hosts = plan_.host_count();
  const Range blocks = plan_.blocks_of(host_, local_);
  int64_t used = 0;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const int64_t home_size = plan_.part(block, host_, count).size();
    for (int step = 1; step < hosts; ++step) {
      const int from = (host_ - step + hosts) % hosts;
      const int to = (host_ + step) % hosts;
      receive(chunk, plan_.in_charge(from, block), Tag::reduce, chunk.scratch.subspan(used, home_size));
      send(chunk, plan_.in_charge(to, block), Tag::reduce, plan_.part(block, to, count));
      used += home_size;
    }
  }
}

// … and computes z = Σ_h y_h there, divided once.
void Allreduce::sum_between_hosts(Chunk& chunk, float divisor) {
  const auto count = static_cast<int64_t>(chunk.data.size());
  const int hosts = plan_.host_count();
  const Range blocks = plan_.blocks_of(host_, local_);
  const float* incoming = chunk.scratch.data();
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const auto home = slice(chunk.data, plan_.part(block, host_, count));
    terms_.assign(hosts, home.data());
    for (int step = 1; step < hosts; ++step) {
      terms_[(host_ - step + hosts) % hosts] = incoming;
      incoming += home.size();
    }
    ordered_sum(home.data(), terms_, static_cast<int64_t>(home.size()), divisor);
  }
}

// Every host gets z back from the parts' homes.
void Allreduce::post_gather_between_hosts(Chunk& chunk) {
  const auto count = static_cast<int64_t>(chunk.data.size());
  const int hosts = plan_.host_count();
  const Range blocks = plan_.blocks_of(host_, local_);
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    for (int step = 1; step < hosts; ++step) {
      const int from = (host_ - step + hosts) % hosts;
      const int to = (host_ + step) % hosts;
      receive(chunk, plan_.in_charge(from, block), Tag::gather, slice(chunk.data, plan_.part(block, from, count)));
      send(chunk, plan_.in_charge(to, block), Tag::gather, plan_.part(block, host_, count));
    }
  }
}

// Every rank gets the other pieces from the ranks of its host.
void Allreduce::post_gather_within_host(Chunk& chunk) {
  const std::vector<int>& ranks = plan_.ranks_of(host_);
  const int width = static_cast<int>(ranks.size());
  const auto count = static_cast<int64_t>(chunk.data.size());
  for (int step = 1; step < width; ++step) {
    const int from = (local_ - step + width) % width;
    receive(chunk, ranks[from], Tag::gather, slice(chunk.data, plan_.piece(host_, from, count)));
    send(chunk, ranks[(local_ + step) % width], Tag::gather, plan_.piece(host_, local_, count));
  }
}

// Both ends of an empty message know that it is empty, and leave it out.
void Allreduce::send(Chunk& chunk, int peer, Tag tag, Range range) {
  if (range.size() == 0) return;
  chunk.requests.push_back(comm_.send(peer, tag, std::as_bytes(slice(chunk.data, range))));
}

void Allreduce::receive(Chunk& chunk, int peer, Tag tag, std::span<float> floats) {
  if (floats.empty()) return;
  chunk.requests.push_back(comm_.receive(peer, tag, std::as_writable_bytes(floats)));
}

}  // namespace spillway::ddl
