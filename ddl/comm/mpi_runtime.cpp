#include "ddl/comm/mpi_runtime.h"

// The deprecated C++ bindings would add a library and warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/host/vain_polls.h"
#include "core/program.h"
#include "ddl/comm/busy.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// A communicator that MPI is making. MPI writes here, and cannot be told to stop.
struct MpiRuntime::State::Duplicate {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
};

bool MpiRuntime::State::is_finalized() const {
  int ended = 0;
  if (!is_ours) MPI_Finalized(&ended);
  return finalized || ended;
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(str(call, ": ", text));
}

Watchdog::Watchdog(std::string call, std::chrono::milliseconds deadline)
    : thread_([call = std::move(call), deadline](const std::stop_token& stop) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        std::condition_variable_any ended;
        ended.wait_for(lock, stop, deadline, [] { return false; });
        if (stop.stop_requested()) return;
        std::fprintf(stderr,
                     "[ddl] no answer to %s within %.3g s: another rank, or the launcher, hangs or was stopped\n",
                     call.c_str(), std::chrono::duration<double>(deadline).count());
        std::_Exit(kCommunication);
      }) {}

namespace {

/// The polls of a wait after which a rank sleeps between polls, so that waiting does not cost a core.
constexpr int kPollsBeforeSleep = 2000;

/// Returns each rank's host, as ordinals. Ranks that can share memory with each other share a host.
std::vector<int> discover_hosts(MPI_Comm world) {
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(world, &size), "MPI_Comm_size");
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  int first = rank;
  const int code = MPI_Bcast(&first, 1, MPI_INT, 0, host);
  MPI_Comm_free(&host);
  check_mpi(code, "MPI_Bcast");
  std::vector<int> hosts(size);
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, hosts.data(), 1, MPI_INT, world), "MPI_Allgather");
  std::vector<int> leaders;
  for (int& leader : hosts) {
    const auto found = std::find(leaders.begin(), leaders.end(), leader);
    const int ordinal = found - leaders.begin();
    if (found == leaders.end()) leaders.push_back(leader);
    leader = ordinal;
  }
  return hosts;
}

class MpiTransport final : public Transport {
 public:
  using Duplicate = MpiRuntime::State::Duplicate;

  /// Makes the first wire over all processes and discovers hosts. Collective. Throws CommError when not all ranks come
  /// within `deadline`.
  MpiTransport(std::shared_ptr<MpiRuntime::State> state, std::chrono::milliseconds deadline)
      : state_(std::move(state)), life_(std::make_shared<Life>()), deadline_(deadline) {
    start(MPI_COMM_WORLD);
    for (const auto end = std::chrono::steady_clock::now() + deadline; !ready(); idle(end)) {
      if (std::chrono::steady_clock::now() < end) continue;
      state_->broken = true;
      throw CommError(str("[ddl] rank ", rank_, ": not all ranks of the launch came within ",
                          static_cast<double>(deadline.count()) / 1000, " s"));
    }
    // All ranks are here, so a call that blocks from here on does so for microseconds.
    const Watchdog watchdog("the discovery of hosts", deadline);
    const MpiTurn turn(state_->taking_turns);
    hosts_ = discover_hosts(made_->comm);
  }
  MpiTransport(const MpiTransport& other)
      : state_(other.state_), life_(other.life_), deadline_(other.deadline_), hosts_(other.hosts_) {
    start(other.made_->comm);
  }
  /// Makes a wire between members of `other`, which are all here.
  MpiTransport(const MpiTransport& other, std::span<const int> members)
      : state_(other.state_),
        life_(other.life_),
        deadline_(other.deadline_),
        made_(std::make_shared<Duplicate>()),
        rank_(place_of(other.rank_, members)),
        hosts_(hosts_of(members, other.hosts_)) {
    const Watchdog watchdog("the making of a group", deadline_);
    const MpiTurn turn(state_->taking_turns);
    require_life();
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    check_mpi(MPI_Comm_group(other.made_->comm, &all), "MPI_Comm_group");
    int code = MPI_Group_incl(all, std::ssize(members), members.data(), &some);
    if (code == MPI_SUCCESS) code = MPI_Comm_create_group(other.made_->comm, some, /*tag=*/0, &made_->comm);
    if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
    MPI_Group_free(&all);
    check_mpi(code, "MPI_Comm_create_group");
  }
  MpiTransport& operator=(const MpiTransport&) = delete;

  // Ranks destroy their transports in any order. MPI_Comm_free is collective in name, but waits for no other rank in
  // any MPI known to us. Without it MPICH has no communicator left after some 2000.
  ~MpiTransport() override {
    const MpiTurn turn(state_->taking_turns);
    forget();
    if (made_->request != MPI_REQUEST_NULL)
      state_->unfinished.push_back(made_);
    else if (!state_->is_finalized() && !life_->over)
      MPI_Comm_free(&made_->comm);
  }

  int rank() const override { return rank_; }
  const std::vector<int>& hosts() const override { return hosts_; }

  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    const MpiTurn turn(state_->taking_turns);
    require_life();
    const int slot = take_slot();
    for_each_piece(bytes.size(), [&](size_t begin, int size) {
      MPI_Request& request = slots_[slot].pieces.emplace_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Isend(bytes.data() + begin, size, MPI_BYTE, peer, static_cast<int>(tag), made_->comm, &request),
                "MPI_Isend");
    });
    return {slot, peer};
  }

  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    const MpiTurn turn(state_->taking_turns);
    require_life();
    const int slot = take_slot();
    slots_[slot].expected = std::ssize(bytes);
    for_each_piece(bytes.size(), [&](size_t begin, int size) {
      MPI_Request& request = slots_[slot].pieces.emplace_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Irecv(bytes.data() + begin, size, MPI_BYTE, peer == kAnyRank ? MPI_ANY_SOURCE : peer,
                          static_cast<int>(tag), made_->comm, &request),
                "MPI_Irecv");
    });
    return {slot, peer};
  }

  bool test(Request& request) override {
    if (!request.active()) return true;
    const MpiTurn turn(state_->taking_turns);
    require_life();
    Slot& slot = slots_[request.slot];
    while (slot.finished < slot.pieces.size()) {
      int done = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&slot.pieces[slot.finished], &done, &status), "MPI_Test");
      if (!done) return false;
      if (slot.expected >= 0) {
        int size = 0;
        check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
        slot.received += size;
      }
      ++slot.finished;
    }
    if (slot.expected >= 0 && slot.received != slot.expected) {
      throw std::runtime_error(str(slot.received, " bytes came where ", slot.expected, " were expected"));
    }
    polls_.found();
    free_.push_back(request.slot);
    request = {};
    return true;
  }

  void idle(std::chrono::steady_clock::time_point) override {
    if (!polls_.yield()) std::this_thread::sleep_for(kSleepBetweenPolls);
  }

  void abandon() noexcept override {
    const MpiTurn turn(state_->taking_turns);
    state_->broken = true;
    life_->over = true;
    forget();
  }

  std::unique_ptr<Transport> duplicate() override { return std::make_unique<MpiTransport>(*this); }
  std::unique_ptr<Transport> group(std::span<const int> members) override {
    return std::make_unique<MpiTransport>(*this, members);
  }

  bool ready() override {
    const MpiTurn turn(state_->taking_turns);
    require_life();
    int done = 1;
    check_mpi(MPI_Test(&made_->request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    if (done) check_mpi(MPI_Comm_set_errhandler(made_->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return done;
  }

 private:
  struct Slot {
    std::vector<MPI_Request> pieces;
    size_t finished = 0;
    int64_t expected = -1;  ///< bytes that a receive expects; -1: a send
    int64_t received = 0;
  };
  /// State shared by a transport and its duplicates, which die together.
  struct Life {
    bool over = false;
  };

  /// Throws when the communicator is dead or MPI is finalized. After a death the buffers of messages under way are
  /// freed, although MPI can cancel neither a send nor a receive that is matched. MPI looks at buffers only inside
  /// calls, so no call is made any more.
  void require_life() const {
    if (life_->over) throw std::runtime_error("its communicator is dead");
    if (state_->is_finalized()) throw std::runtime_error("MPI is finalized");
  }

  void forget() noexcept {
    if (state_->is_finalized()) return;
    for (Slot& slot : slots_) {
      for (MPI_Request& request : slot.pieces) {
        if (request == MPI_REQUEST_NULL || slot.expected < 0) continue;
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    }
  }

  void start(MPI_Comm from) {
    const MpiTurn turn(state_->taking_turns);
    require_life();
    made_ = std::make_shared<Duplicate>();
    check_mpi(MPI_Comm_rank(from, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_idup(from, &made_->comm, &made_->request), "MPI_Comm_idup");
  }

  static void for_each_piece(size_t size, auto start) {
    size_t begin = 0;
    do {
      const size_t piece = std::min(kPieceBytes, size - begin);
      start(begin, piece);
      begin += piece;
    } while (begin < size);
  }

  int take_slot() {
    if (free_.empty()) {
      slots_.emplace_back();
      free_.reserve(slots_.size());
      return std::ssize(slots_) - 1;
    }
    const int slot = free_.back();
    free_.pop_back();
    slots_[slot].pieces.clear();
    slots_[slot].finished = 0;
    slots_[slot].expected = -1;
    slots_[slot].received = 0;
    return slot;
  }

  const std::shared_ptr<MpiRuntime::State> state_;
  const std::shared_ptr<Life> life_;
  const std::chrono::milliseconds deadline_;
  std::shared_ptr<Duplicate> made_;
  int rank_ = 0;
  VainPolls polls_{kPollsBeforeSleep};
  std::vector<int> hosts_;
  std::vector<Slot> slots_;
  std::vector<int> free_;
};

}  // namespace

bool built_with_mpi() noexcept {
  return true;
}

MpiRuntime::MpiRuntime(std::chrono::milliseconds deadline) : state_(std::make_shared<State>()) {
  int provided = MPI_THREAD_SINGLE;
  int started = 0;
  MPI_Initialized(&started);
  if (started) {
    state_->is_ours = false;
    if (state_->is_finalized()) throw std::runtime_error("[ddl] this program has ended its MPI already");
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
    if (provided < MPI_THREAD_MULTIPLE)
      throw std::runtime_error(
          "[ddl] this program has started MPI without MPI_THREAD_MULTIPLE, so Spillway's threads may not call it");
    return;
  }
  const Watchdog watchdog("MPI_Init", deadline);
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    throw std::runtime_error("[ddl] this MPI does not let threads take turns (MPI_THREAD_SERIALIZED)");
  }
}

MpiRuntime::~MpiRuntime() {
  const MpiTurn turn(state_->taking_turns);
  state_->finalized = true;
  if (!state_->is_ours) return;
  if (!state_->broken && std::uncaught_exceptions() == state_->exceptions_at_start) {
    const Watchdog watchdog("MPI_Finalize", Busy::kAtMost);
    MPI_Finalize();
  }
}

std::unique_ptr<Transport> MpiRuntime::transport(std::chrono::milliseconds deadline) {
  return std::make_unique<MpiTransport>(state_, deadline);
}

std::shared_ptr<Communicator> MpiRuntime::world(CommOptions options) {
  auto wire = transport(options.deadline);
  return std::make_shared<Communicator>(std::move(wire), std::move(options));
}

std::string MpiRuntime::library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string all(text, length);
  return all.substr(0, all.find_first_of("\n\0", 0, 2));
}

void MpiRuntime::abort(int code) noexcept {
  // Before MPI_Init and after MPI_Finalize, MPI_Abort prints a page of its own and returns 1.
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started && !ended) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace spillway::ddl
