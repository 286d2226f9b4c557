// Tests of vectors with more elements than 32 bits can count.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <system_error>

#include "ddl/allreduce/allreduce.h"
#include "ddl/comm/thread_world.h"

namespace spillway::ddl {
namespace {

/// A long range of addresses over little memory. The same pages repeat through it, except for its last pages.
class RepeatedMemory {
 public:
  static constexpr size_t kPeriod = size_t{64} << 20;

  explicit RepeatedMemory(size_t bytes) : size_((bytes + kPeriod - 1) / kPeriod * kPeriod) {
    const int file = ::memfd_create("repeated", 0);
    void* const range = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool good = ::ftruncate(file, 2 * kPeriod) == 0 && range != MAP_FAILED;
    data_ = static_cast<std::byte*>(range);
    for (size_t begin = 0; good && begin < size_; begin += kPeriod)
      good = ::mmap(data_ + begin, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                    begin + kPeriod < size_ ? 0 : static_cast<off_t>(kPeriod)) != MAP_FAILED;
    const int error = errno;
    ::close(file);
    if (!good) throw std::system_error(error, std::generic_category(), "repeated memory");
  }
  ~RepeatedMemory() { ::munmap(data_, size_); }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  /// Returns the elements in the repeated pages. last() returns those in the last pages.
  std::span<uint16_t> repeated() { return {reinterpret_cast<uint16_t*>(data_), kPeriod / 2}; }
  std::span<uint16_t> last() { return {reinterpret_cast<uint16_t*>(data_ + size_ - kPeriod), kPeriod / 2}; }
  std::byte* data() { return data_; }

 private:
  size_t size_;
  std::byte* data_;
};

/// Returns the bits of a small integer as bfloat16.
uint16_t rounded(size_t value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
}

}  // namespace

TEST(LargeVectorTest, MoreThanTwoToThe31ElementsAreReducedToTheLast) {
  constexpr size_t kLast = 1000, kCount = (size_t{1} << 31) + kLast, kBytes = 2 * kCount;
  ThreadWorld world({0, 0});
  run_ranks(world, [&](Communicator& comm) {
    RepeatedMemory input(kBytes), output(kBytes);
    const auto rank = static_cast<size_t>(comm.rank());
    for (size_t k = 0; k < input.repeated().size(); ++k) input.repeated()[k] = rounded(k % 13 + rank);
    for (size_t k = 0; k < kLast; ++k) input.last()[k] = rounded(50 + k % 7 + rank);
    Allreduce allreduce(comm, {.chunk_bytes = int64_t{4} << 20});
    allreduce.reduce({{input.data(), kBytes}, {output.data(), kBytes}, Element::bfloat16}, Reduction::sum);
    size_t wrong = 0;
    for (size_t k = 0; k < output.repeated().size(); ++k) wrong += output.repeated()[k] != rounded(2 * (k % 13) + 1);
    for (size_t k = 0; k < kLast; ++k) wrong += output.last()[k] != rounded(101 + 2 * (k % 7));
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(output.last()[kLast], 0) << "behind the last";
  });
}

}  // namespace spillway::ddl
