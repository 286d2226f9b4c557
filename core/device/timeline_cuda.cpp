// Copy lanes and operator clocks on CUDA streams.
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "core/device/compute_marks.h"
#include "core/device/cuda_library.h"
#include "core/strided_runs.h"

namespace spillway::cuda {

using c10::cuda::CUDAEvent;
using c10::cuda::CUDAStream;

// --- events ---------------------------------------------------------------------------------------------------------

namespace {

using Event = std::shared_ptr<CUDAEvent>;

/// Events of one kind. The pool reuses an event when it has no reference left.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  /// `flags` are CUDA's. Events with times cost the host twice as much as those without.
  explicit EventPool(unsigned flags) : flags_(flags) {}
  Event record(const CUDAStream& stream) {
    std::unique_ptr<CUDAEvent> event;
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        event = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!event) event = std::make_unique<CUDAEvent>(flags_);
    event->record(stream);
    return {event.release(), [pool = shared_from_this()](CUDAEvent* used) { pool->return_block(used); }};
  }

 private:
  void return_block(CUDAEvent* event) {
    std::lock_guard lock(mutex_);
    free_.emplace_back(event);
  }
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CUDAEvent>> free_;
};

/// Returns the seconds between two events, and waits for them.
double seconds_between(const Event& from, const Event& to) {
  const auto elapsed = [&]() -> std::optional<double> {
    float milliseconds = 0;
    const cudaError_t error = C10_CUDA_ERROR_HANDLED(cudaEventElapsedTime(&milliseconds, from->event(), to->event()));
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return std::nullopt;
    }
    C10_CUDA_CHECK(error);
    return milliseconds / 1e3;
  };
  return seconds_when_done(elapsed, [&] {
    for (const Event& event : {from, to}) C10_CUDA_CHECK(cudaEventSynchronize(event->event()));
  });
}

}  // namespace

class ComputeMarks {
 public:
  explicit ComputeMarks(c10::Stream compute) : stream(compute) {}

  using Mark = ComputeMark<Event>;
  /// The marks that one clock will read.
  using List = std::vector<Mark>;

  Event record() { return events->record(stream); }
  /// Makes what is given to `other` from here on run after the work that compute was given before.
  void order_after_compute(const CUDAStream& other) { order_events_->record(stream)->block(other); }
  std::shared_ptr<List> make_list() {
    std::lock_guard lock(mutex_);
    std::erase_if(lists_, [](const std::weak_ptr<List>& list) { return list.expired(); });
    auto list = std::make_shared<List>();
    lists_.push_back(list);
    return list;
  }
  void add(List& list, Mark mark) {
    std::lock_guard lock(mutex_);
    push(list, std::move(mark));
  }
  /// Records, for all clocks, that compute did no operator's work between the two events.
  void add_stall(Event from, Event until) {
    std::lock_guard lock(mutex_);
    if (aside_depth_ == 0) push_to_all({Mark::Kind::stall, std::move(from), std::move(until)});
  }
  /// Starts a stall that lasts until resume(). Calls nest. Stalls in between are part of it.
  void pause() {
    std::lock_guard lock(mutex_);
    if (aside_depth_++ == 0) aside_from_ = record();
  }
  void resume() {
    std::lock_guard lock(mutex_);
    if (--aside_depth_ == 0) push_to_all({Mark::Kind::stall, std::exchange(aside_from_, nullptr), record()});
  }
  std::vector<Mark> take(List& list) {
    std::lock_guard lock(mutex_);
    return std::exchange(list, {});
  }

  const CUDAStream stream;
  const std::shared_ptr<EventPool> events = std::make_shared<EventPool>(cudaEventDefault);

 private:
  static constexpr size_t kMaxMarks = 1 << 17;
  // Marks have a limit, because no clock reads them where no step ends. A step with more operators than the limit is
  // timed by the host's clock.
  static void push(List& list, Mark mark) {
    if (list.size() < kMaxMarks) list.push_back(std::move(mark));
  }
  void push_to_all(const Mark& mark) {
    for (const auto& known : lists_)
      if (auto list = known.lock()) push(*list, mark);
  }
  const std::shared_ptr<EventPool> order_events_ = std::make_shared<EventPool>(cudaEventDisableTiming);
  std::mutex mutex_;
  std::vector<std::weak_ptr<List>> lists_;
  int aside_depth_ = 0;
  Event aside_from_;
};

std::shared_ptr<ComputeMarks> make_marks(c10::Stream compute) {
  return std::make_shared<ComputeMarks>(compute);
}

// --- the copy lane --------------------------------------------------------------------------------------------------

namespace {

/// The time that a lane's copies took, and the time that compute waited for them.
class Measured {
 public:
  void add_copy(Event start, Event end, int64_t bytes) { add({std::move(start), std::move(end), bytes}); }
  void add_stall(Event start, Event end) { add({std::move(start), std::move(end), -1}); }
  CopyTotals totals() {
    std::lock_guard lock(mutex_);
    collect();
    return totals_;
  }

 private:
  struct Span {
    Event start, end;
    int64_t bytes;  // -1: compute waited
  };
  void add(Span span) {
    std::lock_guard lock(mutex_);
    open_.push_back(std::move(span));
    if (open_.size() > 1024) collect();
  }
  void collect() {
    std::erase_if(open_, [&](const Span& span) {
      if (!span.end->query()) return false;
      const double seconds = seconds_between(span.start, span.end);
      if (span.bytes < 0) {
        totals_.stalled_seconds += seconds;
      } else {
        totals_.bytes += span.bytes;
        totals_.seconds += seconds;
      }
      return true;
    });
  }
  std::mutex mutex_;
  std::deque<Span> open_;
  CopyTotals totals_;
};

class QueuedCopy final : public QueuedWork {
 public:
  QueuedCopy(Event end, std::shared_ptr<ComputeMarks> marks, std::shared_ptr<Measured> measured)
      : end_(std::move(end)), marks_(std::move(marks)), measured_(std::move(measured)) {}
  bool done() override { return end_->query(); }
  void wait() override { C10_CUDA_CHECK(cudaEventSynchronize(end_->event())); }
  void order_compute_after() override {
    if (done()) return;
    Event from = marks_->record();
    end_->block(marks_->stream);
    Event until = marks_->record();
    measured_->add_stall(from, until);
    marks_->add_stall(std::move(from), std::move(until));
  }

 private:
  const Event end_;
  const std::shared_ptr<ComputeMarks> marks_;
  const std::shared_ptr<Measured> measured_;
};

/// The largest distance of rows that cudaMemcpy2DAsync takes (cudaDevAttrMaxPitch of all GPUs).
constexpr int64_t kMaxPitch = std::numeric_limits<int32_t>::max();

class StreamTimeline final : public Timeline {
 public:
  StreamTimeline(std::shared_ptr<ComputeMarks> marks, std::shared_ptr<PinnedRange> host)
      : marks_(std::move(marks)),
        host_(std::move(host)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, marks_->stream.device_index())) {}
  ~StreamTimeline() override { C10_CUDA_IGNORE_ERROR(cudaStreamSynchronize(stream_.stream())); }

  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    return submit(bytes, [&] { enqueue(static_cast<char*>(destination), static_cast<const char*>(source), bytes); });
  }
  Ticket copy_runs(void* destination, const void* source, const StridedRuns& runs) override {
    char* const to = static_cast<char*>(destination);
    const char* const from = static_cast<const char*>(source);
    if (runs.dimensions.empty()) return copy(destination, source, runs.run_bytes);
    return submit(runs.bytes(), [&] {
      runs.for_each_row([&](int64_t to_offset, int64_t from_offset) {
        enqueue_row(to + to_offset, from + from_offset, runs.run_bytes, runs.dimensions.back());
      });
    });
  }
  Ticket move(void* data, int64_t bytes, Side to) override {
    return submit(bytes, [&] { prefetch(data, bytes, to, stream_.unwrap()); });
  }
  CopyTotals totals() const override { return measured_->totals(); }

 private:
  /// Returns how many of the `bytes` at both places one copy may take.
  int64_t bytes_at_once(const char* to, const char* from, int64_t bytes) {
    return host_ ? std::min(host_->pin(to, bytes), host_->pin(from, bytes)) : bytes;
  }
  void enqueue(char* to, const char* from, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
      const int64_t piece = bytes_at_once(to + done, from + done, bytes - done);
      C10_CUDA_CHECK(cudaMemcpyAsync(to + done, from + done, piece, cudaMemcpyDefault, stream_.stream()));
      done += piece;
    }
  }
  /// Copies the runs of one dimension: as many with one call as may be, and one by itself that crosses from one chunk
  /// of pinned memory to the next.
  void enqueue_row(char* to, const char* from, int64_t run_bytes, StridedRuns::Dimension row) {
    while (row.count > 0) {
      const int64_t together = std::min(runs_at_once(to, run_bytes, row.count, row.destination_stride),
                                        runs_at_once(from, run_bytes, row.count, row.source_stride));
      if (together > 1)
        C10_CUDA_CHECK(cudaMemcpy2DAsync(to, row.destination_stride, from, row.source_stride, run_bytes, together,
                                         cudaMemcpyDefault, stream_.stream()));
      else
        enqueue(to, from, run_bytes);
      const int64_t taken = std::max<int64_t>(together, 1);
      row.count -= taken;
      to += taken * row.destination_stride;
      from += taken * row.source_stride;
    }
  }
  /// Returns how many of the runs at `at` one call may copy; 0 when the first one crosses into another chunk.
  int64_t runs_at_once(const char* at, int64_t run_bytes, int64_t count, int64_t stride) {
    if (stride < run_bytes || stride > kMaxPitch) return 1;
    const int64_t extent = (count - 1) * stride + run_bytes;
    return runs_within(host_ ? host_->pin(at, extent) : extent, run_bytes, stride);
  }

  template <class Enqueue>
  Ticket submit(int64_t bytes, Enqueue&& enqueue) try {
    std::lock_guard lock(mutex_);
    c10::cuda::CUDAGuard guard(stream_.device_index());
    // Copies run after the work that compute was given before: the source's writer, or the last user of the
    // destination's memory.
    marks_->order_after_compute(stream_);
    Event start = marks_->events->record(stream_);
    enqueue();
    Event end = marks_->events->record(stream_);
    measured_->add_copy(std::move(start), end, bytes);
    return Ticket(std::make_shared<QueuedCopy>(std::move(end), marks_, measured_));
  } catch (...) {
    TicketSource failed;
    failed.complete(std::current_exception());
    return failed.ticket();
  }

  const std::shared_ptr<ComputeMarks> marks_;
  const std::shared_ptr<PinnedRange> host_;
  const CUDAStream stream_;
  const std::shared_ptr<Measured> measured_ = std::make_shared<Measured>();
  std::mutex mutex_;
};

class StreamClock final : public ComputeClock {
 public:
  explicit StreamClock(std::shared_ptr<ComputeMarks> marks) : marks_(std::move(marks)), own_(marks_->make_list()) {}
  void begin() override { marks_->add(*own_, {ComputeMarks::Mark::Kind::begin, marks_->record()}); }
  void end() override { marks_->add(*own_, {ComputeMarks::Mark::Kind::end, marks_->record()}); }
  void pause() override { marks_->pause(); }
  void resume() override { marks_->resume(); }
  std::vector<Times> take() override {
    const std::vector<ComputeMarks::Mark> marks = marks_->take(*own_);
    if (marks.empty()) return {};
    const ComputeMarks::Mark& last = marks.back();
    C10_CUDA_CHECK(cudaEventSynchronize((last.until ? last.until : last.at)->event()));
    return times_of(marks, &seconds_between);
  }
  void forget() override { (void)marks_->take(*own_); }

 private:
  const std::shared_ptr<ComputeMarks> marks_;
  const std::shared_ptr<ComputeMarks::List> own_;
};

}  // namespace

std::unique_ptr<Timeline> make_timeline(std::shared_ptr<ComputeMarks> marks, std::shared_ptr<PinnedRange> host) {
  return std::make_unique<StreamTimeline>(std::move(marks), std::move(host));
}

std::unique_ptr<ComputeClock> make_clock(std::shared_ptr<ComputeMarks> marks) {
  return std::make_unique<StreamClock>(std::move(marks));
}

}  // namespace spillway::cuda
