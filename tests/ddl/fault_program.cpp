// A program that plays one fault between processes for fault_test.sh. Usage: `ddl_fault_program FAULT VICTIM [PLAN
// LEVELS [WHERE]]`. Ranks reduce in a loop until the fault. PLAN is direct, or names an algorithm for each level, as in
// direct-ring. LEVELS is 2x2 or 2+1, or as discovered. A survivor prints the CommError and waits to be killed, because
// mpirun ends the other ranks when one leaves.
//   killed, stopped       the victim kills (SIGKILL) or stops (SIGSTOP) itself
//   abort                 as `stopped`, and the survivors call MpiRuntime::abort(4)
//   slow, late            the victim sleeps for less than the deadline, or for more than the others wait for it
//   busy                  the victim sleeps longer than the others would wait, and says that it is busy
//   throws                the victim gives up with its reason and code, and then exits late; the others, whose queues
//                         wait for its queue, call MpiRuntime::abort with the code
//   absent                the victim stops before a duplicate is made, and the survivors call MpiRuntime::abort(4)
//   count, type, average  the victim reduces another count, another type, or takes the average
//   plan                  the victim has another plan
//   broadcast, order      the victim makes two calls in the other order: a broadcast and an allreduce, two allreduces
// WHERE says where killed, stopped, abort, slow and late happen. `call` is before the call. `reduce` is within it,
// before a message that collects contributions, once another message has come. `gather` is within it, before the first
// message that hands out results.
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/comm/background_queue.h"
#include "ddl/comm/busy.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/mpi.h"
#include "tests/support/ddl/faulty_transport.h"

namespace {

using namespace spillway::ddl;
using spillway::str;
using std::chrono::milliseconds;

constexpr milliseconds kDeadline{1500};
constexpr int kSteps = 20, kFaultStep = 10;
constexpr int64_t kCount = 100'000;

/// Writes one line with one write, so that the output of ranks does not mix within a line.
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::abort();
}

void suffer(const std::string& fault, Communicator* comm = nullptr) {
  if (fault == "killed") raise(SIGKILL);
  if (fault == "stopped" || fault == "abort") raise(SIGSTOP);
  if (fault == "slow") std::this_thread::sleep_for(kDeadline / 3);
  if (fault == "late") std::this_thread::sleep_for(3 * kDeadline);
  if (fault == "busy") {
    const Busy busy(comm);
    std::this_thread::sleep_for(3 * kDeadline);
  }
  if (fault == "throws") {
    comm->give_up("[pager] cannot free 3 GiB", 3);
    std::this_thread::sleep_for(3 * kDeadline);
  }
}

Plan plan_of(const Levels& levels, const std::string& names) {
  std::vector<Algorithm> algorithms;
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, '-');)
    for (const auto algorithm : {Algorithm::direct, Algorithm::ring, Algorithm::halving, Algorithm::leader})
      if (name == name_of(algorithm)) algorithms.push_back(algorithm);
  if (algorithms.size() == 1) return Plan(levels, algorithms.front());
  return Plan(levels, algorithms);
}

/// Sums small whole numbers, which are exact in any order, and prints a line when a sum is wrong.
template <class T>
void reduce(Communicator& comm, Allreduce& allreduce, int64_t count, Element element, Reduction reduction) {
  std::vector<T> data(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) data[static_cast<size_t>(k)] = static_cast<T>(k % 11 + comm.rank());
  allreduce.reduce(in_place(std::span(data), element), reduction);
  const int64_t ranks = comm.size(), sum_of_ranks = ranks * (ranks - 1) / 2;
  for (int64_t k = 0; k < count; ++k)
    if (data[static_cast<size_t>(k)] != static_cast<T>(ranks * (k % 11) + sum_of_ranks))
      return say(str("WRONG SUM on rank ", comm.rank(), " at ", k, ": ", data[static_cast<size_t>(k)]));
}

void sum(Communicator& comm, Allreduce& allreduce, int64_t count) {
  reduce<float>(comm, allreduce, count, Element::float32, Reduction::sum);
}

void play_step(Communicator& comm, Allreduce& allreduce, const std::string& fault, bool victim) {
  std::vector<std::byte> bytes(1000);
  if (fault == "broadcast") {
    if (!victim) broadcast(comm, bytes, 0);
    sum(comm, allreduce, kCount);
    if (victim) broadcast(comm, bytes, 0);
  } else if (fault == "order") {
    sum(comm, allreduce, victim ? kCount - 1 : kCount);
    sum(comm, allreduce, victim ? kCount : kCount - 1);
  } else if (fault == "type" && victim) {
    reduce<double>(comm, allreduce, kCount, Element::float64, Reduction::sum);
  } else if (fault == "average" && victim) {
    reduce<float>(comm, allreduce, kCount, Element::float32, Reduction::average);
  } else if (fault == "plan" && victim) {
    Allreduce other(comm, Plan(Levels(comm.size()), Algorithm::ring));
    sum(comm, other, kCount);
  } else {
    sum(comm, allreduce, fault == "count" && victim ? kCount - 1 : kCount);
  }
}

struct Case {
  std::string fault, plan = "direct", levels, where = "call";
  int victim = -1;
};

/// Plays the case on a BackgroundQueue.
void play_beside(Communicator& comm, const Case& played, std::chrono::steady_clock::time_point& start) {
  start = std::chrono::steady_clock::now();
  const bool victim = comm.rank() == played.victim;
  if (played.fault == "absent" && victim) raise(SIGSTOP);
  BackgroundQueue queue(comm.duplicate(), "queue");
  for (int step = 0; step < kSteps; ++step) {
    if (step == kFaultStep && victim) return suffer(played.fault, &comm);
    queue
        .submit([](Communicator& own) {
          Allreduce allreduce(own);
          sum(own, allreduce, kCount);
        })
        .wait();
  }
}

void play(Communicator& comm, testing::FaultyTransport& wire, const Case& played,
          std::chrono::steady_clock::time_point& start) {
  if (played.fault == "throws" || played.fault == "absent") return play_beside(comm, played, start);
  Allreduce allreduce(comm, plan_of(comm.levels(), played.plan));
  for (int step = 0; step < kSteps; ++step) {
    const bool strikes = step == kFaultStep && comm.rank() == played.victim;
    start = std::chrono::steady_clock::now();
    if (strikes && played.where == "call") suffer(played.fault, &comm);
    if (strikes && played.where != "call") wire.arm();
    play_step(comm, allreduce, played.fault, strikes);
  }
  say(str("NO ERROR on rank ", comm.rank()));
}

void report(Communicator& comm, const CommError& error, std::chrono::steady_clock::time_point start) {
  const auto waited = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
  say(str("SURVIVOR ", error.what()));
  say(str("WAITED ", waited.count()));
  try {
    barrier(comm);
    say("NOT DEAD");
  } catch (const CommError& again) {
    say(str("DEAD ", again.what()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: ddl_fault_program FAULT VICTIM [PLAN LEVELS [WHERE]]\n", stderr);
    return 2;
  }
  // No rank outlives mpirun for long, not even a stopped one, whatever happens to the script.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Case played;
  played.fault = argv[1];
  played.victim = std::atoi(argv[2]);
  if (argc > 4) played.plan = argv[3], played.levels = argv[4];
  if (argc > 5) played.where = argv[5];
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (played.fault == "unstarted") {
    say(str("PID ", getpid()));
    if (rank && std::atoi(rank) == played.victim) raise(SIGSTOP);
  }
  MpiRuntime mpi(played.fault == "unstarted" ? milliseconds(5000) : CommOptions().deadline);
  auto transport = std::make_unique<testing::FaultyTransport>(
      mpi.transport(), played.where == "gather" ? Tag::gather : Tag::reduce, [&] { suffer(played.fault); });
  testing::FaultyTransport& wire = *transport;
  CommOptions options{.deadline = kDeadline};
  if (!played.levels.empty())
    options.levels = Levels::parse(played.levels, static_cast<int>(wire.hosts().size())).labels();
  Communicator comm(std::move(transport), options);
  say(str("PID ", getpid()));
  barrier(comm);
  auto start = std::chrono::steady_clock::now();
  try {
    play(comm, wire, played, start);
    if (played.fault == "slow" || played.fault == "busy") return 0;
  } catch (const CommError& error) {
    report(comm, error, start);
    if (played.fault == "throws") MpiRuntime::abort(error.exit_code());
    if (played.fault == "abort" || played.fault == "absent") MpiRuntime::abort(4);
  }
  alarm(60);
  pause();
}
