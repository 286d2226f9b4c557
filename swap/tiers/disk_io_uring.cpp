// The engine on io_uring. CMake picks disk_io_uring_stub.cpp where liburing is absent.
#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "swap/tiers/disk_io.h"

namespace spillway::swap {
namespace {

/// A ring that ends with this object.
struct Ring {
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open) ::io_uring_queue_exit(&ring);
  }
  io_uring ring{};
  bool open = false;
};

bool is_temporary(int result) {
  return result == -EINTR || result == -EAGAIN || result == -EBUSY;
}

/// Hands the ring's entries over to the kernel. Returns 0, or an errno value; the entries then stay in the ring.
int submit_all(io_uring& ring) {
  int result = 0;
  do result = ::io_uring_submit(&ring);
  while (is_temporary(result));
  return result < 0 ? -result : 0;
}

/// True when the ring has both operations. Linux 5.1 to 5.5 have rings, but not these two operations, nor a way to ask.
bool reads_and_writes(io_uring& ring) {
  const std::unique_ptr<io_uring_probe, decltype(&::io_uring_free_probe)> probe(::io_uring_get_probe_ring(&ring),
                                                                                &::io_uring_free_probe);
  return probe && ::io_uring_opcode_supported(probe.get(), IORING_OP_READ) &&
         ::io_uring_opcode_supported(probe.get(), IORING_OP_WRITE);
}

/// Sends one entry round, because a sandbox may let rings be made, but not used. Returns 0, or an errno value.
int try_out(io_uring& ring) {
  ::io_uring_prep_nop(::io_uring_get_sqe(&ring));
  if (const int error = submit_all(ring)) return error;
  io_uring_cqe* completion = nullptr;
  int waited = 0;
  do waited = ::io_uring_wait_cqe(&ring, &completion);
  while (is_temporary(waited));
  if (waited < 0) return -waited;
  ::io_uring_cqe_seen(&ring, completion);
  return 0;
}

class UringIo final : public DiskIo {
 public:
  explicit UringIo(std::unique_ptr<Ring> ring) : owned_(std::move(ring)), ring_(owned_->ring) {}

  void start(DiskOperation& op) override {
    if (const int error = submit(op)) throw std::system_error(error, std::generic_category(), "[disk] io_uring_submit");
  }

  DiskOperation& wait() override {
    for (;;) {
      io_uring_cqe* completion = nullptr;
      if (const int waited = ::io_uring_wait_cqe(&ring_, &completion); waited < 0) {
        // Started operations will end, and their memory must last so long. Where the kernel does not let this thread
        // sleep until then, the thread looks again and again.
        if (!is_temporary(waited)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      auto* op = static_cast<DiskOperation*>(::io_uring_cqe_get_data(completion));
      const int result = completion->res;
      ::io_uring_cqe_seen(&ring_, completion);
      if (!op) continue;
      if (op->advance(result)) return *op;
      if ((op->error = submit(*op))) return *op;
    }
  }

  std::string name() const override { return "io_uring"; }

 private:
  /// Submits the operation. Returns 0, or an errno value; the kernel then knows nothing of the operation.
  int submit(DiskOperation& op) {
    // The caller has no more operations under way than the ring has entries, so only refused entries fill it.
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    if (!entry) {
      if (const int error = submit_all(ring_)) return error;
      entry = ::io_uring_get_sqe(&ring_);
    }
    char* data = op.data + op.moved_bytes;
    const unsigned bytes = op.bytes - op.moved_bytes;
    const uint64_t offset = op.offset + op.moved_bytes;
    if (op.write)
      ::io_uring_prep_write(entry, op.descriptor, data, bytes, offset);
    else
      ::io_uring_prep_read(entry, op.descriptor, data, bytes, offset);
    ::io_uring_sqe_set_data(entry, &op);
    const int error = submit_all(ring_);
    if (error) {
      ::io_uring_prep_nop(entry);  // it stays in the ring, and is submitted with the next one
      ::io_uring_sqe_set_data(entry, nullptr);
    }
    return error;
  }

  const std::unique_ptr<Ring> owned_;
  io_uring& ring_;
};

}  // namespace

std::unique_ptr<DiskIo> make_uring_io(int depth, std::string& why_not) {
  auto ring = std::make_unique<Ring>();
  if (const int result = ::io_uring_queue_init(static_cast<unsigned>(depth), &ring->ring, 0); result < 0) {
    why_not = std::string("the system refuses io_uring (") + std::strerror(-result) + ")";
    return nullptr;
  }
  ring->open = true;
  if (!reads_and_writes(ring->ring)) {
    why_not = "the system has io_uring, but does not say that it reads and writes (Linux 5.6 does)";
    return nullptr;
  }
  if (const int error = try_out(ring->ring)) {
    why_not = std::string("the system refuses to use io_uring (") + std::strerror(error) + ")";
    return nullptr;
  }
  return std::make_unique<UringIo>(std::move(ring));
}

}  // namespace spillway::swap
