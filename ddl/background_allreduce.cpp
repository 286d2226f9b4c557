#include "ddl/background_allreduce.h"

#include <algorithm>

namespace spillway::ddl {

using Clock = std::chrono::steady_clock;

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
  last_ = worker_.submit([=, this, submitted = Clock::now()] {
    after.wait();
    allreduce_.reduce(vector, reduction, scratch, signature);
    const auto start = std::max(submitted, end_);
    end_ = Clock::now();
    ++totals_.calls;
    totals_.bytes += static_cast<int64_t>(vector.output.size());
    totals_.time += end_ - start;
    totals_.rounds = allreduce_.totals().rounds;
  });
  return last_;
}

}  // namespace spillway::ddl
