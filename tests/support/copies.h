// Doubles of the copy lanes. Late copies expose a missing edge, and failing ones a forgotten error.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/strided_runs.h"
#include "core/timeline.h"
#include "tests/support/poison.h"

namespace spillway::testing {

/// The base of doubles that know only how to copy one run. Runs are copies one after another, which end together.
class RunwiseTimeline : public Timeline {
 public:
  Ticket copy_runs(void* destination, const void* source, const StridedRuns& runs) override {
    std::vector<Ticket> copies;
    runs.for_each_run([&](int64_t to, int64_t from) {
      copies.push_back(
          copy(static_cast<char*>(destination) + to, static_cast<const char*>(source) + from, runs.run_bytes));
    });
    return Ticket(std::make_shared<AllOf>(std::move(copies)));
  }

 private:
  class AllOf final : public QueuedWork {
   public:
    explicit AllOf(std::vector<Ticket> tickets) : tickets_(std::move(tickets)) {}
    bool done() override {
      for (const Ticket& ticket : tickets_)
        if (!ticket.done()) return false;
      wait();  // throws the error of one that failed
      return true;
    }
    void wait() override {
      for (const Ticket& ticket : tickets_) ticket.wait();
    }
    void order_compute_after() override {
      for (const Ticket& ticket : tickets_) ticket.order_compute_after();
    }

   private:
    const std::vector<Ticket> tickets_;
  };
};

/// A timeline that starts each copy late by a random time, in order.
class DelayedTimeline final : public RunwiseTimeline {
 public:
  DelayedTimeline(uint32_t seed, std::chrono::microseconds longest) : random_(seed), longest_(longest) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    std::lock_guard lock(mutex_);
    auto delay = longest_ * (random_() % 1000) / 1000;
    return worker_.submit([=] {
      std::this_thread::sleep_for(delay);
      std::memcpy(destination, source, static_cast<size_t>(bytes));
    });
  }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
  std::chrono::microseconds longest_;
  WorkerTimeline worker_{"delayed"};
};

/// A timeline that moves each copy's bytes, in order, at a random moment between the copy's turn and its ticket. They
/// move at once with a ticket that comes late, in two halves, or at the last instant. Until then the destination holds
/// garbage. A Timeline may do all of this, so no caller may notice it.
class RandomTimeline final : public RunwiseTimeline {
 public:
  RandomTimeline(uint32_t seed, std::chrono::microseconds longest) : random_(seed), longest_(longest) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    std::lock_guard lock(mutex_);
    const auto early = static_cast<size_t>(bytes) * (random_() % 3) / 2;
    const auto delay = longest_ * (random_() % 1000) / 1000;
    auto* to = static_cast<char*>(destination);
    auto* from = static_cast<const char*>(source);
    return worker_.submit([=] {
      std::memcpy(to, from, early);
      std::memset(to + early, kPoison, static_cast<size_t>(bytes) - early);
      std::this_thread::sleep_for(delay);
      std::memcpy(to + early, from + early, static_cast<size_t>(bytes) - early);
    });
  }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
  std::chrono::microseconds longest_;
  WorkerTimeline worker_{"random"};
};

/// A RandomTimeline whose tickets are like those of a device's queue. Compute can be ordered after them at once.
/// Ordering waits for the copy here, because compute is the caller.
class QueuedTimeline final : public RunwiseTimeline {
 public:
  QueuedTimeline(uint32_t seed, std::chrono::microseconds longest) : real_(seed, longest) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    return Ticket(std::make_shared<Copy>(real_.copy(destination, source, bytes)));
  }

 private:
  class Copy final : public QueuedWork {
   public:
    explicit Copy(Ticket ticket) : ticket_(std::move(ticket)) {}
    bool done() override { return ticket_.done(); }
    void wait() override { ticket_.wait(); }
    void order_compute_after() override { ticket_.wait(); }

   private:
    const Ticket ticket_;
  };
  RandomTimeline real_;
};

/// A timeline that copies at once, on the caller's thread.
class SameThreadTimeline final : public RunwiseTimeline {
 public:
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    std::memcpy(destination, source, static_cast<size_t>(bytes));
    return {};
  }
};

/// The error of a FlakyTimeline's copies.
struct CopyFailed : std::runtime_error {
  static constexpr const char* kText = "the copy failed, as its double was told to";
  CopyFailed() : std::runtime_error(kText) {}
  /// True for this error, and for that of an operator whose window could not be copied after others had been written,
  /// which tells this one's text first.
  static bool is(const std::exception& error) { return std::string_view(error.what()).starts_with(kText); }
};

/// A timeline that fails one copy in `one_in` at random. Half of the bytes have then moved, and the rest of the
/// destination is garbage. Copies after the failed one work again, and each failure makes the next one rarer. No copy
/// fails while `calm` holds.
class FlakyTimeline final : public RunwiseTimeline {
 public:
  FlakyTimeline(uint32_t seed, uint32_t one_in, std::shared_ptr<std::atomic<bool>> calm = nullptr)
      : random_(seed), one_in_(one_in), calm_(std::move(calm)) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    std::lock_guard lock(mutex_);
    const bool fails = random_() % one_in_ == 0 && !(calm_ && *calm_);
    if (fails) one_in_ += one_in_ / 10 + 1;
    return worker_.submit([=] {
      std::memcpy(destination, source, static_cast<size_t>(fails ? bytes / 2 : bytes));
      if (!fails) return;
      std::memset(static_cast<char*>(destination) + bytes / 2, kPoison, static_cast<size_t>(bytes - bytes / 2));
      throw CopyFailed();
    });
  }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
  uint32_t one_in_;
  const std::shared_ptr<std::atomic<bool>> calm_;
  WorkerTimeline worker_{"flaky"};
};

/// A timeline that breaks the one promise of a Timeline. Tickets are complete at once, and the bytes move when the next
/// copy is submitted. Every test that finds races must find this one. The bytes move on the caller's thread, so the
/// race is one of order and not of memory.
class EarlyTicketTimeline final : public RunwiseTimeline {
 public:
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    if (late_) late_();
    late_ = [=] { std::memcpy(destination, source, static_cast<size_t>(bytes)); };
    return {};
  }

 private:
  std::function<void()> late_;
};

/// A timeline that fails every copy once `good` of them have succeeded.
class FailingTimeline final : public RunwiseTimeline {
 public:
  FailingTimeline(std::unique_ptr<Timeline> real, int64_t good) : real_(std::move(real)), good_(good) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    if (good_-- > 0) return real_->copy(destination, source, bytes);
    TicketSource failed;
    failed.complete(std::make_exception_ptr(std::runtime_error("the copy failed")));
    return failed.ticket();
  }

 private:
  std::unique_ptr<Timeline> real_;
  std::atomic<int64_t> good_;
};

/// A timeline that throws std::bad_alloc instead of taking its next copies, as often as it is told to.
class RefusingTimeline final : public RunwiseTimeline {
 public:
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    if (refusals_ > 0) {
      --refusals_;
      throw std::bad_alloc();
    }
    return worker_.copy(destination, source, bytes);
  }
  void refuse(int64_t copies) { refusals_ = copies; }
  int64_t refusals() const { return refusals_; }

 private:
  std::atomic<int64_t> refusals_ = 0;
  WorkerTimeline worker_{"refusing"};
};

/// A slow link. Each copy takes as long as its bytes need at this rate, and the totals say so.
class ThrottledTimeline final : public RunwiseTimeline {
 public:
  ThrottledTimeline(std::string name, double bytes_per_second) : rate_(bytes_per_second), worker_(std::move(name)) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    return worker_.submit([=, this] {
      std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / rate_));
      std::memcpy(destination, source, static_cast<size_t>(bytes));
      bytes_ += bytes;
    });
  }
  CopyTotals totals() const override { return {bytes_, static_cast<double>(bytes_) / rate_}; }

 private:
  const double rate_;
  std::atomic<int64_t> bytes_ = 0;
  WorkerTimeline worker_;
};

/// A timeline that copies only when told to.
class ManualTimeline final : public RunwiseTimeline {
 public:
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    pending_.push_back({destination, source, bytes, {}});
    return pending_.back().ticket.ticket();
  }
  size_t pending() const { return pending_.size(); }
  void finish_one() {
    Copy copy = take();
    std::memcpy(copy.destination, copy.source, static_cast<size_t>(copy.bytes));
    copy.ticket.complete();
  }
  void fail_one() { take().ticket.complete(std::make_exception_ptr(CopyFailed())); }

 private:
  struct Copy {
    void* destination;
    const void* source;
    int64_t bytes;
    TicketSource ticket;
  };
  Copy take() {
    Copy copy = std::move(pending_.front());
    pending_.erase(pending_.begin());
    return copy;
  }
  std::vector<Copy> pending_;
};

}  // namespace spillway::testing
