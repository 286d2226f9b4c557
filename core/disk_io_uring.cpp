// The engine on io_uring. CMake picks disk_io_uring_stub.cpp where liburing is absent.
#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/disk_io.h"

namespace spillway {
namespace {

class UringIo final : public DiskIo {
 public:
  explicit UringIo(const io_uring& ring) : ring_(ring) {}
  ~UringIo() override { ::io_uring_queue_exit(&ring_); }

  void start(DiskOperation& op) override {
    if (const int error = submit(op)) throw std::system_error(error, std::generic_category(), "[disk] io_uring_submit");
  }

  DiskOperation& wait() override {
    for (;;) {
      io_uring_cqe* completion = nullptr;
      const int waited = ::io_uring_wait_cqe(&ring_, &completion);
      if (waited == -EINTR || waited == -EAGAIN) continue;
      if (waited < 0) throw std::system_error(-waited, std::generic_category(), "[disk] io_uring_wait_cqe");
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
  /// 0, or an errno value; the kernel then knows nothing of the operation.
  int submit(DiskOperation& op) {
    // Never full: the caller has no more operations under way than the ring has entries.
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    char* data = op.data + op.moved_bytes;
    const auto bytes = static_cast<unsigned>(op.bytes - op.moved_bytes);
    const auto offset = static_cast<uint64_t>(op.offset + op.moved_bytes);
    if (op.write)
      ::io_uring_prep_write(entry, op.descriptor, data, bytes, offset);
    else
      ::io_uring_prep_read(entry, op.descriptor, data, bytes, offset);
    ::io_uring_sqe_set_data(entry, &op);
    int result = 0;
    do result = ::io_uring_submit(&ring_);
    while (result == -EINTR || result == -EAGAIN || result == -EBUSY);
    if (result >= 0) return 0;
    ::io_uring_prep_nop(entry);  // it stays in the ring, and goes with the next one
    ::io_uring_sqe_set_data(entry, nullptr);
    return -result;
  }

  io_uring ring_;
};

}  // namespace

std::unique_ptr<DiskIo> make_uring_io(int depth, std::string& why_not) {
  io_uring ring{};
  if (const int result = ::io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0); result < 0) {
    why_not = std::string("the system refuses io_uring (") + std::strerror(-result) + ")";
    return nullptr;
  }
  return std::make_unique<UringIo>(ring);
}

}  // namespace spillway
