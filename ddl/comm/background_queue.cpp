#include "ddl/comm/background_queue.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"

namespace spillway::ddl {

BackgroundQueue::BackgroundQueue(std::shared_ptr<Communicator> comm, std::string name)
    : comm_(std::move(comm)), worker_(std::move(name)) {}

BackgroundQueue::~BackgroundQueue() {
  if (!last_.done()) give_up("was interrupted with work in its queue");
}

void BackgroundQueue::give_up(const std::string& reason) {
  comm_->give_up(reason);
}

Ticket BackgroundQueue::submit(Job job, Ticket after, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  last_ = worker_.submit([this, job = std::move(job), after = std::move(after), bytes, submitted = Clock::now()] {
    run(job, after);
    const auto start = std::max(submitted, end_);
    end_ = Clock::now();
    busy_ += end_ - start;
    if (observer_) observer_(start, end_, bytes);
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
