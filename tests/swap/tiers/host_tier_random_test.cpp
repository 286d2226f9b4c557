#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "swap/tiers/host_tier.h"
#include "tests/support/copies.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

using testing::DelayedTimeline;
using testing::DiskSwitch;
using testing::switched;
using testing::TemporaryFolder;

std::vector<char> filled(int64_t bytes, char value) {
  return std::vector<char>(static_cast<size_t>(bytes), value);
}

TEST(HostTierRandomTest, EveryByteSurvivesRandomUseUnderLateCopiesAndALateDisk) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    TemporaryFolder folder;
    HostSlab slab(6 << 20);
    auto control = std::make_shared<DiskSwitch>();
    control->longest_delay = std::chrono::microseconds(300);
    DiskTier disk(folder.path(), slab, {.decorate_io = switched(control)});
    const int64_t buffers = slab.used_bytes();
    DelayedTimeline out(seed, std::chrono::microseconds(300)), in(seed + 9, std::chrono::microseconds(300));
    std::mt19937 random(seed);
    struct Held {
      std::vector<char> data;
      Ticket arrival;
      HostCopy copy;
    };
    {
      HostTier tier(slab, out, in, &disk);
      std::vector<std::unique_ptr<Held>> held;
      for (int i = 0; i < 300; ++i) {
        const auto any = [&]() -> Held& { return *held[random() % held.size()]; };
        const int64_t next_use = random() % 5 ? i + static_cast<int64_t>(random() % 60) : kNextUseUnknown;
        switch (held.size() < 3 ? 0 : random() % 6) {
          case 0:
          case 1: {
            if (held.size() > 20) break;
            auto h = std::make_unique<Held>();
            h->data = filled(1 + static_cast<int64_t>(random() % (random() % 3 ? 1'500'000 : 60'000)),
                             static_cast<char>(random()));
            h->copy = tier.page_out(h->data.data(), static_cast<int64_t>(h->data.size()),
                                    {next_use, static_cast<uint64_t>(i)}, h->arrival);
            held.push_back(std::move(h));
            break;
          }
          case 2: {
            std::swap(held[random() % held.size()], held.back());
            held.back()->arrival.wait();
            held.pop_back();
            break;
          }
          case 3: {
            Held& h = any();
            h.arrival.wait();
            tier.mark_last_copy(h.copy, {next_use, static_cast<uint64_t>(i)});
            break;
          }
          case 4: {
            Held& h = any();
            const auto begin = static_cast<int64_t>(random() % h.data.size());
            const auto bytes = 1 + static_cast<int64_t>(random() % (h.data.size() - static_cast<size_t>(begin)));
            h.arrival.wait();
            const auto change = filled(bytes, static_cast<char>(random()));
            tier.write(h.copy, begin, bytes, change.data());
            std::copy(change.begin(), change.end(), h.data.begin() + begin);
            break;
          }
          default: {
            Held& h = any();
            h.arrival.wait();
            std::vector<char> back(h.data.size());
            tier.page_in(h.copy, back.data()).wait();
            ASSERT_TRUE(back == h.data) << i;
          }
        }
      }
      for (auto& h : held) h->arrival.wait();
      EXPECT_LE(slab.peak_bytes(), slab.capacity_bytes());
      EXPECT_GT(disk.stats().bytes_written, 0);
    }
    EXPECT_EQ(slab.used_bytes(), buffers);
    EXPECT_EQ(disk.stats().used_bytes, 0);
  }
}

}  // namespace
}  // namespace spillway
