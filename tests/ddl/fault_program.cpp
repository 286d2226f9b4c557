// Plays one fault between processes for fault_test.sh: `ddl_fault_program FAULT VICTIM`. Ranks reduce in a loop until
// the fault ends it; a survivor prints the CommError and waits to be killed, for mpirun ends the others when one
// leaves.
//   killed    the victim kills itself (SIGKILL) in the middle of the loop
//   stopped   the victim stops itself (SIGSTOP)
//   mismatch  the victim reduces another count
//   abort     as `stopped`, and the survivors call MpiRuntime::abort(4)
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ddl/allreduce.h"
#include "ddl/collectives.h"
#include "ddl/mpi.h"

namespace {

using namespace spillway::ddl;

void suffer(const std::string& fault) {
  if (fault == "killed") raise(SIGKILL);
  if (fault == "stopped" || fault == "abort") raise(SIGSTOP);
}

void reduce_until_fault(Communicator& comm, const std::string& fault, int victim) {
  Allreduce allreduce(comm);
  for (int step = 0; step < 20; ++step) {
    std::vector<float> data(100'000, 1.0f);
    if (step == 10 && comm.rank() == victim) {
      suffer(fault);
      data.resize(99'999);
    }
    allreduce.reduce(data, Reduction::sum);
  }
}

/// One write per line, so that ranks do not mix within a line.
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: ddl_fault_program killed|stopped|mismatch|abort VICTIM\n", stderr);
    return 2;
  }
  // Whatever happens to the script, nobody outlives mpirun for long, not even stopped.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string fault = argv[1];
  MpiRuntime mpi;
  const auto comm = mpi.world({.deadline = std::chrono::milliseconds(1500)});
  say("PID " + std::to_string(getpid()));
  barrier(*comm);
  try {
    reduce_until_fault(*comm, fault, std::atoi(argv[2]));
    say("NO ERROR on rank " + std::to_string(comm->rank()));
  } catch (const CommError& error) {
    say(std::string("SURVIVOR ") + error.what());
    try {
      barrier(*comm);
      say("NOT DEAD");
    } catch (const CommError& again) {
      say(std::string("DEAD ") + again.what());
    }
    if (fault == "abort") MpiRuntime::abort(4);
  }
  alarm(60);
  pause();
}
