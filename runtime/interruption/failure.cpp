#include "runtime/interruption/failure.h"

#include <c10/util/Exception.h>

#include <new>
#include <typeinfo>

#include "core/error.h"
#include "core/interrupted.h"
#include "ddl/comm/communicator.h"

namespace spillway::runtime {
namespace {

ExitCode code_of(const std::exception& error) {
  if (dynamic_cast<const Interrupted*>(&error)) return kInterrupted;
  if (dynamic_cast<const InfeasibleBudget*>(&error) || dynamic_cast<const OutOfBudget*>(&error)) return kInfeasible;
  if (dynamic_cast<const BadRequest*>(&error) || dynamic_cast<const DeviceError*>(&error)) return kBadRequest;
  if (const auto* comm = dynamic_cast<const ddl::CommError*>(&error))
    return comm->exit_code() > 0 ? static_cast<ExitCode>(comm->exit_code()) : kCommunication;
  return kFailure;
}

}  // namespace

Failure failure_of(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const auto* comm = dynamic_cast<const ddl::CommError*>(&error);
  std::string text = torch ? torch->what_without_backtrace() : error.what();
  if (typeid(error) == typeid(std::bad_alloc))
    text = "[memory] the host has no memory for what the program asked for (std::bad_alloc)";
  return {code_of(error), text.substr(0, text.find('\n')), comm && comm->origin() >= 0};
}

void tell_other_ranks(const ddl::Comm& comm, const std::exception& error) noexcept {
  if (!comm) return;
  try {
    const Failure failure = failure_of(error);
    comm->communicator->give_up(failure.text, failure.code);
  } catch (const std::bad_alloc&) {
    comm->communicator->give_up("is out of memory", kFailure);
  }
}

}  // namespace spillway::runtime
