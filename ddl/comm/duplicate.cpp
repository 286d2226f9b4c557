// A second communicator over the same ranks.
#include "ddl/comm/agreement.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

std::shared_ptr<Communicator> Communicator::duplicate() {
  agree(*this, {Operation::duplicate});
  std::unique_ptr<Transport> wire;
  const auto made = [&] {
    if (!wire) wire = transport_->duplicate();
    return wire->ready();
  };
  wait_until(made, {.collective = "duplicate", .stage = 1});
  return std::shared_ptr<Communicator>(new Communicator(std::move(wire), options_, board_));
}

}  // namespace spillway::ddl
