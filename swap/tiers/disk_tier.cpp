#include "swap/tiers/disk_tier.h"

#include <pthread.h>
#include <xxhash.h>
#ifdef SPILLWAY_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3_64bits is then the one for this processor
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/error.h"

namespace spillway::swap {

struct DiskTier::Request {
  enum class Kind : bool { read, write };
  /// Makes a request for the page's bytes from `from` to `to`; `where` is the memory of the first. A write moves whole
  /// chunks.
  Request(Kind kind, std::shared_ptr<DiskPage> of, DiskMemory where, int64_t from, int64_t to, Done then)
      : write(kind == Kind::write),
        page(std::move(of)),
        memory(std::move(where)),
        begin(from),
        end(to),
        done(std::move(then)),
        next(from) {}
  /// True when no chunk of the request is left to be started.
  bool issued() const { return error || next >= end; }

  const bool write;
  std::shared_ptr<DiskPage> page;
  DiskMemory memory;
  const int64_t begin, end;
  const Done done;
  TicketSource source;
  // Used by the tier's thread alone:
  int64_t next;
  int in_flight = 0;
  bool queued = true;
  std::exception_ptr error;
};

namespace {

int64_t chunk_for(const HostSlab& host) {
  if (host.capacity_bytes() < DiskTier::kMinHostBytes)
    throw BadRequest(str("[disk] the host budget is ", host.capacity_bytes(),
                         " bytes; with a disk it must be at least ", DiskTier::kMinHostBytes, ", for the buffers"));
  // The buffers have an eighth of the host tier, at most 8 MiB.
  return std::clamp<int64_t>(host.capacity_bytes() / 8 / DiskTier::kDepth / PageFile::kAlignment * PageFile::kAlignment,
                             Arena::kSmallBytes, 1 << 20);
}

std::unique_ptr<DiskIo> make_io(const DiskOptions& options) {
  std::unique_ptr<DiskIo> io;
  std::string why_not;
  if (options.engine != DiskOptions::Engine::threads) io = make_uring_io(DiskTier::kDepth, why_not);
  if (!io && options.engine == DiskOptions::Engine::uring) throw BadRequest("[disk] no io_uring: " + why_not);
  if (!io) {
    io = make_thread_io(2);
    if (!why_not.empty()) std::fprintf(stderr, "[disk] %s: using %s\n", why_not.c_str(), io->name().c_str());
  }
  return options.decorate_io ? options.decorate_io(std::move(io)) : std::move(io);
}

bool aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % PageFile::kAlignment == 0;
}

/// Copies into or out of staging, through the memory's lane if it has one.
void copy(void* to, const void* from, int64_t bytes, Timeline* lane) {
  if (lane)
    lane->copy(to, from, bytes).wait();
  else
    std::memcpy(to, from, bytes);
}

uint64_t checksum(const void* data, int64_t bytes) {
  return XXH3_64bits(data, bytes);
}

}  // namespace

DiskPage::~DiskPage() {
  if (offset >= 0) file->free(offset, bytes);
}

DiskTier::DiskTier(const std::filesystem::path& directory, HostSlab& host, const DiskOptions& options)
    : host_(host), file_(std::make_shared<PageFile>(directory)), chunk_bytes_(chunk_for(host)), io_(make_io(options)) {
  if (!file_->direct())
    std::fprintf(stderr, "[disk] the file system of '%s' takes no direct reads and writes: they pass the page cache\n",
                 directory.c_str());
  for (Slot& slot : slots_) slot.staging = static_cast<char*>(host_.allocate(chunk_bytes_));
  thread_ = std::thread([this] { run(); });
}

DiskTier::~DiskTier() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (Slot& slot : slots_) host_.deallocate(slot.staging, chunk_bytes_);
}

Ticket DiskTier::write(std::shared_ptr<DiskPage> page, DiskMemory from, Done done) {
  const int64_t bytes = page->bytes;
  return submit(
      std::make_shared<Request>(Request::Kind::write, std::move(page), std::move(from), 0, bytes, std::move(done)));
}

Ticket DiskTier::read(std::shared_ptr<DiskPage> page, DiskMemory to, Done done) {
  const int64_t bytes = page->bytes;
  return submit(
      std::make_shared<Request>(Request::Kind::read, std::move(page), std::move(to), 0, bytes, std::move(done)));
}

void DiskTier::read_range(const std::shared_ptr<DiskPage>& page, int64_t begin, int64_t bytes, void* to) {
  submit(std::make_shared<Request>(Request::Kind::read, page, DiskMemory{to}, begin, begin + bytes, nullptr)).wait();
}

void DiskTier::write_range(const std::shared_ptr<DiskPage>& page, int64_t begin, int64_t bytes, const void* from) {
  std::vector<char> chunk;
  for (int64_t at = begin / chunk_bytes_ * chunk_bytes_; at < begin + bytes; at += chunk_bytes_) {
    const int64_t size = std::min(chunk_bytes_, page->bytes - at);
    const int64_t first = std::max(begin, at), last = std::min(begin + bytes, at + size);
    chunk.resize(size);
    if (last - first < size) read_range(page, at, size, chunk.data());
    std::memcpy(chunk.data() + (first - at), static_cast<const char*>(from) + (first - begin), last - first);
    submit(std::make_shared<Request>(Request::Kind::write, page, DiskMemory{chunk.data()}, at, at + size, nullptr))
        .wait();
  }
}

DiskStats DiskTier::stats() const noexcept {
  return {.bytes_written = writing_.bytes,
          .bytes_read = reading_.bytes,
          .write_seconds = writing_.seconds,
          .read_seconds = reading_.seconds,
          .used_bytes = file_->used_bytes(),
          .peak_bytes = file_->peak_bytes()};
}

std::string DiskTier::description() const {
  return io_->name() + (file_->direct() ? ", O_DIRECT" : ", through the page cache");
}

Ticket DiskTier::submit(std::shared_ptr<Request> request) {
  Ticket ticket = request->source.ticket();
  {
    std::lock_guard lock(mutex_);
    (request->write ? writes_ : reads_).push_back(std::move(request));
  }
  changed_.notify_one();
  return ticket;
}

// --- everything below runs on the tier's thread ---------------------------------------------------------------------

void DiskTier::run() {
  ::pthread_setname_np(::pthread_self(), "disk tier");
  for (;;) {
    if (auto request = next_request())
      start(request);
    else if (busy_slots_ > 0)
      finish(io_->wait());
    else
      return;
  }
}

/// Takes a request from its queue, reads and writes in turn. Returns nullptr when nothing can be started now.
std::shared_ptr<DiskTier::Request> DiskTier::next_request() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return busy_slots_ > 0 || stopping_ || !reads_.empty() || !writes_.empty(); });
  if (busy_slots_ == kDepth) return nullptr;
  auto& queue = writes_.empty() || (reads_next_ && !reads_.empty()) ? reads_ : writes_;
  if (queue.empty()) return nullptr;
  reads_next_ = &queue == &writes_;
  auto request = std::move(queue.front());
  queue.pop_front();
  request->queued = false;
  return request;
}

/// Starts one more chunk of the request, and puts it back in front of its queue if that was not the last.
void DiskTier::start(const std::shared_ptr<Request>& request) {
  Slot& slot = *std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.request; });
  slot.request = request;
  ++request->in_flight;
  ++busy_slots_;
  const bool unwanted = request->write && request->next == 0 && request->page.use_count() == 1;
  if (unwanted) request->next = request->end;
  try {
    if (!request->issued()) {
      request->write ? prepare_write(slot) : prepare_read(slot);
      Lane& lane = lane_of(slot.operation);
      if (lane.under_way == 0) lane.since = Clock::now();
      try {
        io_->start(slot.operation);
      } catch (const std::system_error& error) {
        slot.operation.error = error.code().value();
        throw DiskError(failure(slot));
      }
      ++lane.under_way;
    }
  } catch (...) {
    request->error = std::current_exception();
  }
  if (!request->issued()) {
    request->queued = true;
    std::lock_guard lock(mutex_);
    (request->write ? writes_ : reads_).push_front(request);
  }
  if (unwanted || request->error) retire(slot);
}

void DiskTier::prepare_write(Slot& slot) {
  Request& request = *slot.request;
  DiskPage& page = *request.page;
  if (page.offset < 0) {
    page.checksums.resize((page.bytes + chunk_bytes_ - 1) / chunk_bytes_);
    page.offset = file_->allocate(page.bytes);
  }
  slot.begin = request.next;
  slot.end = request.next = std::min(request.next + chunk_bytes_, page.bytes);
  const int64_t bytes = slot.end - slot.begin;
  const int64_t stored = file_->direct() ? round_up(bytes, PageFile::kAlignment) : bytes;
  char* data = static_cast<char*>(request.memory.data) + (slot.begin - request.begin);
  slot.staged = request.memory.lane || stored != bytes || (file_->direct() && !aligned(data));
  if (slot.staged) {
    copy(slot.staging, data, bytes, request.memory.lane);
    std::memset(slot.staging + bytes, 0, stored - bytes);
    data = slot.staging;
  }
  slot.checksum = checksum(data, bytes);
  slot.operation = {.descriptor = file_->descriptor(),
                    .write = true,
                    .data = data,
                    .bytes = stored,
                    .offset = page.offset + slot.begin};
}

void DiskTier::prepare_read(Slot& slot) {
  Request& request = *slot.request;
  const DiskPage& page = *request.page;
  const int64_t chunk = request.next / chunk_bytes_ * chunk_bytes_;
  const int64_t bytes = std::min(chunk_bytes_, page.bytes - chunk);
  const int64_t stored = file_->direct() ? round_up(bytes, PageFile::kAlignment) : bytes;
  slot.begin = request.next;
  slot.end = request.next = std::min(request.end, chunk + bytes);
  char* data = static_cast<char*>(request.memory.data) + (slot.begin - request.begin);
  // A part of a chunk is verified with the rest of it.
  slot.staged = request.memory.lane || slot.end - slot.begin != stored || (file_->direct() && !aligned(data));
  slot.operation = {.descriptor = file_->descriptor(),
                    .write = false,
                    .data = slot.staged ? slot.staging : data,
                    .bytes = stored,
                    .offset = page.offset + chunk};
}

void DiskTier::finish(const DiskOperation& operation) {
  Slot& slot = *std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return &s.operation == &operation; });
  Lane& lane = lane_of(operation);
  lane.bytes += operation.moved_bytes;
  if (--lane.under_way == 0) lane.seconds += seconds_since(lane.since);
  try {
    if (operation.failed()) throw DiskError(failure(slot));
    if (operation.write)  // until here a read verifies the bytes that were there before
      slot.request->page->checksums[slot.begin / chunk_bytes_] = slot.checksum;
    else
      deliver(slot);
  } catch (...) {
    slot.request->error = std::current_exception();
  }
  retire(slot);
}

/// Returns the message of a failure: file, offset, and how much the file holds.
std::string DiskTier::failure(const Slot& slot) const {
  const DiskOperation& op = slot.operation;
  return str("[disk] cannot ", op.write ? "write " : "read ", op.bytes, " bytes at offset ", op.offset, " of '",
             path().string(), "': ", op.file_ended ? "the file ends before" : std::strerror(op.error), "; it holds ",
             format_bytes(file_->used_bytes()));
}

/// Verifies a chunk that was read, and copies the bytes that were asked for out of staging.
void DiskTier::deliver(Slot& slot) {
  const Request& request = *slot.request;
  const DiskPage& page = *request.page;
  const int64_t chunk = slot.begin / chunk_bytes_ * chunk_bytes_;
  const int64_t bytes = std::min(chunk_bytes_, page.bytes - chunk);
  const uint64_t expected = page.checksums[slot.begin / chunk_bytes_];
  const uint64_t found = checksum(slot.operation.data, bytes);
  if (found != expected)
    throw DiskError(str("[disk] '", path().string(), "' is damaged: the ", bytes, " bytes at offset ",
                        slot.operation.offset, " have checksum ", std::hex, found, ", but ", expected, " was written"));
  if (slot.staged)
    copy(static_cast<char*>(request.memory.data) + (slot.begin - request.begin), slot.staging + (slot.begin - chunk),
         slot.end - slot.begin, request.memory.lane);
}

/// Frees the slot; the request ends with its last slot.
void DiskTier::retire(Slot& slot) {
  auto request = std::move(slot.request);
  --busy_slots_;
  if (--request->in_flight > 0 || request->queued || !request->issued()) return;
  // The page and the memory are let go of before the callback and the ticket, so that waiting callers find everything
  // settled.
  request->page.reset();
  request->memory.keep.reset();
  if (request->done) request->done(request->error);
  request->source.complete(request->error);
}

}  // namespace spillway::swap
