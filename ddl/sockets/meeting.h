/// The beginning of a SocketEndpoint: the ranks find each other through a Rendezvous.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "ddl/sockets/rendezvous.h"
#include "ddl/sockets/socket_endpoint.h"

namespace spillway::ddl {

/// The time in which ranks publish their addresses, read the others', and connect. A text at the rendezvous may be of
/// a former life: of a group that ended, or of processes that were started anew. Its listener does not answer, or has a
/// connection of this rank already. So texts are read again until their rank welcomes this one. No number is needed
/// that all ranks would have to count alike.
class Meeting {
 public:
  Meeting(SocketEndpoint& endpoint, Rendezvous& rendezvous, std::chrono::milliseconds deadline);
  /// Blocks until this rank has welcomed all others, and has been welcomed by all. Throws CommError that names a rank
  /// which ended meanwhile or did not come within the deadline. The others are told that name.
  void hold();

 private:
  /// This rank's way to another.
  struct Way {
    std::string text;             ///< the address that is tried
    Clock::time_point next_look;  ///< when the text is read again
    Clock::duration interval{};
    Socket socket = {};  ///< the connection, if one is under way or made
    Hello hello = {};
    bool sent_hello = false;
    bool is_welcome = false;
    std::optional<Clock::time_point> ended = {};  ///< when the end of a connection that was made was seen
    std::string error = {};                       ///< why it was not welcome
  };

  void publish();
  void advance(int rank);
  void look(int rank);
  void connect(int rank);
  void greet(int rank);
  void lose(Way& way, const std::string& error);
  bool met(int rank) const;
  /// Throws when a rank has ended before it had met all.
  void look_for_ends();
  void sleep(Clock::time_point end);
  [[noreturn]] void give_up(int named, const std::string& reason);
  [[noreturn]] void give_up_missing();
  /// Tells every rank that has welcomed this one a rank: this one when it has met all, or the one to blame.
  void say(int rank);
  void end_well();

  SocketEndpoint& endpoint_;
  Rendezvous& rendezvous_;
  const std::chrono::milliseconds deadline_;
  const int size_;
  std::vector<Way> ways_;
  bool missed_one_ = false;  ///< true once a text was missing in this round; then others need not be asked for
};

/// Makes a rank's endpoint and holds its meeting with the others. Throws as Meeting::hold() and SocketEndpoint do.
std::unique_ptr<SocketEndpoint> meet(int rank, int size, Rendezvous& rendezvous, const SocketOptions& options);

}  // namespace spillway::ddl
