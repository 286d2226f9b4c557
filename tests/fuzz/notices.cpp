#include <cstring>

#include "ddl/comm/agreement.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/notice_board.h"
#include "ddl/comm/thread_world.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
namespace {

using namespace spillway::ddl;

/// Returns an object of the input's bytes; what is missing is zero.
template <class T>
T object_of(std::string_view input) {
  T object{};
  std::memcpy(static_cast<void*>(&object), input.data(), std::min(input.size(), sizeof object));
  return object;
}

void read_notices(std::string_view input) {
  ThreadWorld world({0, 0, 1});
  const auto stranger = world.transport(1);
  NoticeBoard board(world.transport(0), std::chrono::milliseconds(1));
  for (int i = 0; i < 4 && !input.empty(); ++i) {
    const auto notice = object_of<Notice>(input);
    input.remove_prefix(std::min(input.size(), sizeof notice));
    Request request = stranger->send(0, Tag::notice, std::as_bytes(std::span(&notice, 1)));
    const bool dies = notice.is_sound(3) && notice.kind != Notice::Kind::busy;
    const bool was_dead = board.dead();
    board.look("in a test");
    require(board.dead() == (was_dead || dies), "a sound notice ends a board, and no other does");
    stranger->test(request);
  }
  if (board.dead()) require(board.death().reason.size() < 700, "a reason is the notice's");
}

void read_votes(std::string_view input) {
  struct Vote {
    Call call;
    int64_t rank;
  };
  ThreadWorld world({0, 0});
  const auto stranger = world.transport(1);
  Communicator comm(world.transport(0));
  const auto votes = object_of<std::array<Vote, 2>>(input);
  const Request request = stranger->send(0, Tag::agreement, std::as_bytes(std::span(votes)));
  try {
    barrier(comm);
    const Call own{.operation = Operation::barrier, .sequence = 0};
    require(!(votes[0].call < own) && !(own < votes[1].call), "calls that agree are none below or above");
  } catch (const CommError& error) {
    require(std::string(error.what()).size() < 1000, "an error is of the vote");
  }
  (void)request;
}

}  // namespace

void notices(std::string_view input) {
  if (take_byte(input) % 2 == 0)
    read_notices(input);
  else
    read_votes(input);
}

}  // namespace spillway::fuzz
