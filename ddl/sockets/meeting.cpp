#include "ddl/sockets/meeting.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/sockets/system_sockets.h"

namespace spillway::ddl {
namespace {

using std::chrono::milliseconds;

/// The times between two looks at a text, which double.
constexpr milliseconds kFirstLook{1}, kLastLook{100};

std::string key_of(int rank) {
  return str("spillway/", rank);
}

std::string text_of(int error) {
  return std::system_category().message(error);
}

}  // namespace

Meeting::Meeting(SocketEndpoint& endpoint, Rendezvous& rendezvous, milliseconds deadline)
    : endpoint_(endpoint),
      rendezvous_(rendezvous),
      deadline_(deadline),
      size_(std::ssize(endpoint.peers_)),
      ways_(size_) {}

void Meeting::hold() {
  publish();
  const auto end = Clock::now() + deadline_;
  while (true) {
    missed_one_ = false;
    endpoint_.progress();
    int met_ranks = 0;
    for (int step = 1; step < size_; ++step) {
      const int rank = (endpoint_.rank_ + step) % size_;
      advance(rank);
      met_ranks += met(rank) ? 1 : 0;
    }
    if (met_ranks == size_ - 1) return end_well();
    look_for_ends();
    if (Clock::now() >= end) give_up_missing();
    sleep(end);
  }
}

void Meeting::publish() {
  rendezvous_.set(key_of(endpoint_.rank_),
                  format_address(endpoint_.rank_, endpoint_.peers_[endpoint_.rank_].address, endpoint_.secret_));
}

bool Meeting::met(int rank) const {
  const SocketEndpoint::Peer& peer = endpoint_.peers_[rank];
  // A text of a former life may have led to a process that still waits there.
  return ways_[rank].is_welcome && peer.has_come && peer.life_number == peer.address.life;
}

void Meeting::advance(int rank) {
  Way& way = ways_[rank];
  if (way.socket && !way.is_welcome) greet(rank);
  if (!met(rank) && Clock::now() >= way.next_look) look(rank);
}

void Meeting::look(int rank) {
  Way& way = ways_[rank];
  way.interval = std::clamp<Clock::duration>(2 * way.interval, kFirstLook, kLastLook);
  way.next_look = Clock::now() + way.interval;
  if (way.text.empty() && missed_one_) return;
  const std::optional<std::string> text = rendezvous_.find(key_of(rank));
  missed_one_ |= !text;
  if (!text || (*text == way.text && way.socket)) return;
  if (*text != way.text) {
    way = Way{*text, way.next_look, way.interval};
    SocketEndpoint::Peer& peer = endpoint_.peers_[rank];
    peer.address = parse_address(rank, *text, endpoint_.secret_);
    peer.by_tcp = !endpoint_.is_local(rank);
  }
  connect(rank);
}

void Meeting::connect(int rank) {
  Way& way = ways_[rank];
  SocketEndpoint::Peer& peer = endpoint_.peers_[rank];
  way.sent_hello = false;
  try {
    std::tie(way.socket, way.hello) = endpoint_.connect(rank, SocketEndpoint::kLifeWire);
    if (way.socket) greet(rank);
  } catch (const std::runtime_error& error) {
    way.error = error.what();
    // Hosts may look like one and not be one.
    peer.by_tcp = !peer.by_tcp || !endpoint_.is_local(rank);
  }
}

void Meeting::greet(int rank) {
  Way& way = ways_[rank];
  const int fd = way.socket.fd();
  if (!way.sent_hello) {
    const ssize_t sent = send(fd, &way.hello, sizeof way.hello, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) return;
    // A new connection has room for a hello.
    if (sent != sizeof way.hello) return lose(way, str("rank ", rank, " cannot be reached: ", text_of(errno)));
    way.sent_hello = true;
  }
  Answer answer{};
  const ssize_t count = recv(fd, &answer, sizeof answer, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return lose(way, str("rank ", rank, " closed the connection"));
  if (answer == Answer::welcome) {
    way.is_welcome = true;
    return;
  }
  if (answer == Answer::stranger) endpoint_.peers_[rank].by_tcp = true;  // its user may be another one
  lose(way, answer == Answer::taken ? str("rank ", rank, " has a connection of this rank already")
                                    : str("rank ", rank, " takes this rank for a stranger"));
}

void Meeting::lose(Way& way, const std::string& error) {
  way.socket.close();
  way.error = error;
}

void Meeting::look_for_ends() {
  for (int rank = 0; rank < size_; ++rank) {
    const SocketEndpoint::Peer& peer = endpoint_.peers_[rank];
    Way& way = ways_[rank];
    if (peer.has_met_all) continue;
    if (peer.blames >= 0 && peer.blames != endpoint_.rank_)
      give_up(peer.blames, str("rank ", peer.blames, " has ended or has not come, says rank ", rank));
    if (way.is_welcome && !way.ended && has_ended(way.socket)) way.ended = Clock::now();
    const bool has_lost_it = way.ended && Clock::now() - *way.ended > kGraceAfterEnd;
    if (peer.gone || has_lost_it) give_up(rank, str("rank ", rank, " has ended while the ranks were connecting"));
  }
}

void Meeting::give_up_missing() {
  std::string missing, errors;
  int first = -1;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == endpoint_.rank_ || met(rank)) continue;
    if (first < 0) first = rank;
    missing += str(missing.empty() ? "rank " : ", rank ", rank);
    if (!ways_[rank].error.empty()) errors += str("; ", ways_[rank].error);
  }
  give_up(first, str("not all ranks came within the deadline, ", static_cast<double>(deadline_.count()) / 1000,
                     " s: missing is ", missing, errors));
}

void Meeting::give_up(int named, const std::string& reason) {
  say(named);
  throw CommError(str("[ddl] rank ", endpoint_.rank_, ": ", reason));
}

void Meeting::say(int rank) {
  const int32_t word = rank;
  for (const Way& way : ways_)
    if (way.is_welcome) send(way.socket.fd(), &word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Meeting::end_well() {
  say(endpoint_.rank_);
  std::vector<std::string> names;
  bool needs_tcp = false;
  for (int rank = 0; rank < size_; ++rank) {
    SocketEndpoint::Peer& peer = endpoint_.peers_[rank];
    const auto found = std::find(names.begin(), names.end(), peer.address.host);
    endpoint_.hosts_.push_back(found - names.begin());
    if (found == names.end()) names.push_back(peer.address.host);
    needs_tcp |= peer.came_by_tcp;
    if (endpoint_.is_local(rank) && peer.by_tcp)
      std::fprintf(stderr, "[ddl] rank %d reaches rank %d by TCP, though they seem to share a host: %s\n",
                   endpoint_.rank_, rank, ways_[rank].error.c_str());
    peer.life = std::move(ways_[rank].socket);
  }
  if (needs_tcp) return;
  const std::lock_guard lock(endpoint_.mutex_);
  endpoint_.unwatch(endpoint_.tcp_.fd());
  endpoint_.tcp_.close();  // nobody needs it
}

void Meeting::sleep(Clock::time_point end) {
  std::vector<pollfd> polled{{endpoint_.events(), POLLIN, 0}};
  auto until = std::min(end, Clock::now() + kLastLook);
  for (int rank = 0; rank < size_; ++rank) {
    const Way& way = ways_[rank];
    if (rank != endpoint_.rank_ && !met(rank)) until = std::min(until, way.next_look);
    if (way.socket && !way.is_welcome)
      polled.push_back({way.socket.fd(), static_cast<short>(way.sent_hello ? POLLIN : POLLOUT), 0});
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  poll(polled.data(), polled.size(), std::clamp<int64_t>(left.count(), 0, kLastLook.count()));
}

std::unique_ptr<SocketEndpoint> meet(int rank, int size, Rendezvous& rendezvous, const SocketOptions& options) {
  auto endpoint = std::make_unique<SocketEndpoint>(rank, size, options);
  Meeting(*endpoint, rendezvous, options.deadline).hold();
  return endpoint;
}

}  // namespace spillway::ddl
