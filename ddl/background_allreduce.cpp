#include "ddl/background_allreduce.h"

namespace spillway::ddl {

BackgroundAllreduce::BackgroundAllreduce(std::shared_ptr<Communicator> comm, Choice choice)
    : comm_(std::move(comm)),
      allreduce_(*comm_, choice.plan, choice.options),
      sizes_(*comm_, choice.plan, choice.options),
      worker_("allreduce") {}

BackgroundAllreduce::~BackgroundAllreduce() {
  if (!last_.done()) give_up();
}

void BackgroundAllreduce::give_up() {
  comm_->interrupt();
  last_ = worker_.submit([this] {
    if (!comm_->dead()) comm_->fail("was interrupted between two allreduces");
  });
}

Ticket BackgroundAllreduce::reduce(const Vector& vector, Reduction reduction, std::span<std::byte> scratch,
                                   uint64_t signature, Ticket after) {
  last_ = worker_.submit([=, this] {
    after.wait();
    allreduce_.reduce(vector, reduction, scratch, signature);
  });
  return last_;
}

}  // namespace spillway::ddl
