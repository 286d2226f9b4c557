/// The suite of couriers, which every backend must pass.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "ddl/comm/collectives.h"
#include "ddl/courier/courier.h"
#include "tests/support/ddl/on_every_shape.h"

namespace spillway::ddl::testing {

/// A courier with memory of its own.
class OwnCourier {
 public:
  OwnCourier(std::shared_ptr<Communicator> comm, const std::vector<Channel>& channels)
      : memory_(static_cast<size_t>(Courier::memory_bytes(channels))), courier_(std::move(comm), channels, memory_) {}
  Courier* operator->() { return &courier_; }

  /// Sends a message whose bytes follow from `seed`.
  void send(size_t channel, Stamp stamp, int seed) {
    courier_.send(channel, stamp, [&](std::span<std::byte> data) {
      for (size_t i = 0; i < data.size(); ++i) data[i] = byte(seed, i);
    });
  }
  /// Returns true when the next message has the bytes of `seed`.
  bool receive(size_t channel, Stamp due, int seed) {
    bool equal = true;
    const Stamp stamp = courier_.receive(channel, due, [&](std::span<const std::byte> data) {
      for (size_t i = 0; i < data.size(); ++i) equal = equal && data[i] == byte(seed, i);
    });
    return equal && stamp.seconds == due.seconds;
  }

 private:
  static std::byte byte(int seed, size_t i) { return static_cast<std::byte>(static_cast<size_t>(seed) * 31 + i * 7); }

  std::vector<std::byte> memory_;
  Courier courier_;
};

template <class World>
class CourierConformance : public OnEveryShape<World> {};
TYPED_TEST_SUITE_P(CourierConformance);

/// Returns a line of each size to the next rank and to the one before, and the other ends of their lines to this one.
inline std::vector<Channel> lines_around(const Communicator& comm, const std::vector<int64_t>& sizes, int slots) {
  const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
  std::vector<Channel> channels;
  int number = 0;
  for (int64_t bytes : sizes) {
    channels.push_back({"on", number, next, true, bytes, slots});
    channels.push_back({"on", number++, before, false, bytes, slots});
    channels.push_back({"back", number, before, true, bytes, slots});
    channels.push_back({"back", number++, next, false, bytes, slots});
  }
  return channels;
}

TYPED_TEST_P(CourierConformance, MessagesOfEveryChannelArriveInTheirOrder) {
  this->on_every_shape([](Communicator& comm) {
    if (comm.size() == 1) return;
    const std::vector<int64_t> sizes{0, 1, 5000, 60'001};
    for (int slots : {1, 3}) {
      const auto channels = lines_around(comm, sizes, slots);
      OwnCourier courier(comm.duplicate(), channels);
      for (int64_t step = 0; step < 2; ++step) {
        // As many messages as fit, all channels in one order; then they are read in the other one.
        const auto stamp = [&](int64_t k) { return Stamp{step, k, 0.5 * static_cast<double>(k)}; };
        for (int k = 0; k < 2 * slots; ++k)
          for (size_t i = 0; i < channels.size(); ++i)
            if (channels[i].sends) courier.send(i, stamp(k), comm.rank() + 10 * k + channels[i].number);
        for (size_t i = channels.size(); i-- > 0;)
          for (int k = 0; k < 2 * slots && !channels[i].sends; ++k)
            EXPECT_TRUE(courier.receive(i, stamp(k), channels[i].peer + 10 * k + channels[i].number));
      }
      for (size_t i = 0; i < channels.size(); ++i) EXPECT_EQ(courier->totals(i).messages, 4 * slots);
    }
  });
}

TYPED_TEST_P(CourierConformance, ItsMessagesAreApartFromCollectives) {
  this->on_every_shape([](Communicator& comm) {
    if (comm.size() == 1) return;
    const auto channels = lines_around(comm, {1000}, 1);
    OwnCourier courier(comm.duplicate(), channels);
    for (int64_t k = 0; k < 20; ++k) {
      courier.send(0, {0, k, 0}, comm.rank());
      barrier(comm);
      EXPECT_TRUE(courier.receive(1, {0, k, 0}, channels[1].peer));
    }
  });
}

TYPED_TEST_P(CourierConformance, WhatWasSentArrivesAfterTheSenderIsGone) {
  this->on_every_shape([](Communicator& comm) {
    if (comm.size() == 1) return;
    const auto own = comm.duplicate();
    if (comm.rank() > 1) return;
    OwnCourier courier(own, {{"on", 0, 1 - comm.rank(), comm.rank() == 0, 200'000, 1}});
    if (comm.rank() == 0) return courier.send(0, {}, 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(courier.receive(0, {}, 5));
  });
}

REGISTER_TYPED_TEST_SUITE_P(CourierConformance, MessagesOfEveryChannelArriveInTheirOrder,
                            ItsMessagesAreApartFromCollectives, WhatWasSentArrivesAfterTheSenderIsGone);

}  // namespace spillway::ddl::testing
