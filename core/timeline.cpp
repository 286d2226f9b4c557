#include "core/timeline.h"

#include <pthread.h>

#include <cstring>
#include <stdexcept>

#include "core/strided_runs.h"

namespace spillway {

Ticket::Ticket(std::shared_ptr<QueuedWork> work) : state_(std::make_shared<State>()) {
  state_->work = std::move(work);
}

/// Returns true when `look` accepts every part of the work. `look` is called with each part under the part's lock.
template <class Look>
bool Ticket::follow(Look&& look) const {
  std::shared_ptr<State> rest;
  for (auto state = state_; state; state = std::move(rest)) {
    std::lock_guard lock(state->mutex);
    if (state->work && !state->done) try {
        state->done = state->work->done();
      } catch (...) {
        state->error = std::current_exception();
        state->done = true;
      }
    if (!look(*state)) return false;
    rest = state->rest;
  }
  return true;
}

bool Ticket::done() const {
  return follow([](const State& state) { return state.done; });
}

bool Ticket::succeeded() const {
  return follow([](const State& state) { return state.done && !state.error; });
}

bool Ticket::can_order_without_wait() const {
  return follow([](const State& state) { return state.done || state.work; });
}

void Ticket::wait() const {
  std::shared_ptr<State> rest;
  for (auto state = state_; state; state = std::move(rest)) {
    if (state->work) state->work->wait();
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->done || state->work; });
    if (state->error) std::rethrow_exception(state->error);
    rest = state->rest;
  }
}

void Ticket::order_compute_after() const {
  std::shared_ptr<State> rest;
  for (auto state = state_; state; state = std::move(rest)) {
    if (state->work) state->work->order_compute_after();
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->done || state->work; });
    if (state->error) std::rethrow_exception(state->error);
    rest = state->rest;
  }
}

TicketSource::TicketSource() : state_(std::make_shared<Ticket::State>()) {}

Ticket TicketSource::ticket() const {
  Ticket ticket;
  ticket.state_ = state_;
  return ticket;
}

void TicketSource::complete(std::exception_ptr error) {
  {
    std::lock_guard lock(state_->mutex);
    state_->done = true;
    state_->error = std::move(error);
  }
  state_->changed.notify_all();
}

void TicketSource::chain_to(Ticket rest) {
  {
    std::lock_guard lock(state_->mutex);
    state_->rest = std::move(rest.state_);
  }
  complete();
}

Ticket Timeline::move(void*, int64_t, Side) {
  TicketSource failed;
  failed.complete(std::make_exception_ptr(std::logic_error("[timeline] this lane does not move managed memory")));
  return failed.ticket();
}

WorkerTimeline::WorkerTimeline(std::string name, Observer observer)
    : name_(std::move(name)), observer_(std::move(observer)), worker_([this] { run(); }) {}

WorkerTimeline::~WorkerTimeline() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

Ticket WorkerTimeline::copy(void* destination, const void* source, int64_t bytes) {
  return copy_runs(destination, source, {.run_bytes = bytes});
}

Ticket WorkerTimeline::copy_runs(void* destination, const void* source, const StridedRuns& runs) {
  return submit([=, this, bytes = runs.bytes()] {
    auto start = std::chrono::steady_clock::now();
    runs.for_each_run([&](int64_t to, int64_t from) {
      std::memcpy(static_cast<char*>(destination) + to, static_cast<const char*>(source) + from, runs.run_bytes);
    });
    auto end = std::chrono::steady_clock::now();
    {
      std::lock_guard lock(mutex_);
      totals_.bytes += bytes;
      totals_.seconds += std::chrono::duration<double>(end - start).count();
    }
    if (observer_) observer_(start, end, bytes);
  });
}

CopyTotals WorkerTimeline::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

Ticket WorkerTimeline::submit(std::function<void()> work) {
  TicketSource source;
  Ticket ticket = source.ticket();
  {
    std::lock_guard lock(mutex_);
    queue_.emplace_back(std::move(work), std::move(source));
  }
  changed_.notify_one();
  return ticket;
}

void WorkerTimeline::run() {
  ::pthread_setname_np(::pthread_self(), name_.substr(0, 15).c_str());
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto [work, source] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;
    source.complete(std::move(error));
    lock.lock();
  }
}

}  // namespace spillway
