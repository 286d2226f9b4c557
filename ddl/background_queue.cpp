#include "ddl/background_queue.h"

#include <algorithm>
#include <utility>

namespace spillway::ddl {

using Clock = std::chrono::steady_clock;

BackgroundQueue::BackgroundQueue(std::shared_ptr<Communicator> comm, std::string name)
    : comm_(std::move(comm)), worker_(std::move(name)) {}

BackgroundQueue::~BackgroundQueue() {
  if (!last_.done()) give_up();
}

void BackgroundQueue::give_up() {
  comm_->interrupt();
  last_ = worker_.submit([this] {
    if (!comm_->dead()) comm_->fail("was interrupted between two jobs");
  });
}

Ticket BackgroundQueue::submit(Job job, Ticket after) {
  last_ = worker_.submit([this, job = std::move(job), after = std::move(after), submitted = Clock::now()] {
    run(job, after);
    const auto start = std::max(submitted, end_);
    end_ = Clock::now();
    busy_ += end_ - start;
  });
  return last_;
}

void BackgroundQueue::run(const Job& job, const Ticket& after) {
  try {
    after.wait();
    job(*comm_);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    comm_->fail(error.what());  // the others would wait for this rank
  }
}

}  // namespace spillway::ddl
