#include "ddl/comm/collectives.h"

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/notice_board.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
/// The longest text with which a rank refuses something.
constexpr size_t kMaxRefusal = size_t{64} << 10;

int position_of(std::span<const int> members, int rank) {
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : found - members.begin();
}

void validate_members(const Communicator& comm, int root, std::span<const int> members) {
  if (position_of(members, root) < 0) {
    throw BadRequest(str("[ddl] broadcast: root ", root, " is not among the ", members.size(), " members"));
  }
  for (int i = 0; i < std::ssize(members); ++i) {
    if (members[i] < 0 || members[i] >= comm.size() || position_of(members, members[i]) != i) {
      throw BadRequest(str("[ddl] broadcast: member ", members[i], " at place ", i,
                           "; allowed: distinct ranks from 0 to ", comm.size() - 1));
    }
  }
}

/// Sends `piece` down a binomial tree over places relative to the root's. Place v hears from v with its lowest set bit
/// cleared. It tells v + 2^k for every 2^k below that bit.
void pass_down(Communicator& comm, std::span<std::byte> piece, std::span<const int> members, int place, int root_place,
               int stage) {
  const int size = std::ssize(members);
  const int own = (place - root_place + size) % size;
  const auto rank_of = [&](int relative) { return members[(relative + root_place) % size]; };
  int bit = 1;
  while (bit < size && !(own & bit)) bit *= 2;
  if (own != 0) {
    Request request = comm.receive(rank_of(own - bit), Tag::broadcast, piece);
    comm.wait({&request, 1}, {.collective = "broadcast", .stage = stage});
  }
  std::array<Request, 32> sends;
  size_t count = 0;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (own + bit < size) sends[count++] = comm.send(rank_of(own + bit), Tag::broadcast, piece);
  }
  comm.wait({sends.data(), count}, {.collective = "broadcast", .stage = stage});
}

}  // namespace

void broadcast(Communicator& comm, std::span<std::byte> bytes, int root, std::span<const int> members,
               uint64_t signature, std::string_view detail) {
  validate_members(comm, root, members);
  const int place = position_of(members, comm.rank());
  if (place < 0) return;
  for (const int member : members) signature = hash_in(signature, member);
  const Call call = Call{Operation::broadcast, root, std::ssize(bytes), signature}.with_detail({detail});
  if (std::ssize(members) == comm.size())
    agree(comm, call);
  else
    agree(comm, call, members, place);
  int stage = 0;
  for (size_t done = 0; done < bytes.size(); done += kPieceBytes) {
    const auto piece = bytes.subspan(done, std::min(kPieceBytes, bytes.size() - done));
    pass_down(comm, piece, members, place, position_of(members, root), ++stage);
  }
}

void broadcast(Communicator& comm, std::span<std::byte> bytes, int root, uint64_t signature) {
  std::vector<int> everyone(comm.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  broadcast(comm, bytes, root, everyone, signature);
}

void barrier(Communicator& comm) {
  agree(comm, {Operation::barrier});
}

void allgather(Communicator& comm, std::span<const std::byte> own, std::span<std::byte> all) {
  if (all.size() != own.size() * comm.size()) {
    throw BadRequest(str("[ddl] allgather of ", own.size(), " bytes from ", comm.size(), " ranks into ", all.size(),
                         " bytes; required: ", own.size() * comm.size()));
  }
  agree(comm, {Operation::allgather, -1, std::ssize(own)});
  if (own.empty()) return;
  if (comm.is_simulated()) {
    for (int rank = 0; rank < comm.size(); ++rank) std::copy(own.begin(), own.end(), all.begin() + own.size() * rank);
    return;
  }
  std::copy(own.begin(), own.end(), all.begin() + own.size() * comm.rank());
  std::vector<Request> requests;
  for (int step = 1; step < comm.size(); ++step) {
    const int from = (comm.rank() - step + comm.size()) % comm.size();
    requests.push_back(comm.receive(from, Tag::blob, all.subspan(own.size() * from, own.size())));
    requests.push_back(comm.send((comm.rank() + step) % comm.size(), Tag::blob, own));
  }
  comm.wait(requests, {.collective = "allgather", .stage = 1});
}

std::vector<std::string> gather_texts(Communicator& comm, const std::string& own) {
  const uint64_t size = own.size();
  std::vector<uint64_t> sizes(comm.size());
  allgather(comm, std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  const size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = own, all(most * comm.size(), '\0');
  padded.resize(most);
  allgather(comm, std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) texts.push_back(all.substr(rank * most, sizes[rank]));
  return texts;
}

void throw_on_all_ranks(Communicator& comm, const std::string& refusal) {
  std::string text = beginning_of(refusal, kMaxRefusal);
  const int64_t own = std::ssize(text);
  std::vector<int64_t> sizes(comm.size());
  allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(sizes)));
  const auto first = std::find_if(sizes.begin(), sizes.end(), [](int64_t size) { return size > 0; });
  if (first == sizes.end()) return;
  if (*first > static_cast<int64_t>(kMaxRefusal))
    comm.fail(
        str("rank ", comm.world_rank(first - sizes.begin()), " refuses in ", *first, " bytes; allowed: ", kMaxRefusal));
  text.resize(*first);
  broadcast(comm, std::as_writable_bytes(std::span(text)), first - sizes.begin());
  throw BadRequest(text);
}

void check_together(Communicator& comm, const std::function<void()>& check) {
  std::exception_ptr own;
  std::string refusal;
  try {
    check();
  } catch (const std::exception& error) {
    own = std::current_exception();
    const std::string text = error.what();
    refusal = str("rank ", comm.rank(), ": ", text.substr(0, text.find('\n')));
  }
  try {
    throw_on_all_ranks(comm, refusal);
  } catch (const BadRequest&) {
    if (own) std::rethrow_exception(own);
    throw;
  }
}

}  // namespace spillway::ddl
