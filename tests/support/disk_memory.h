// Memory for tests of disks, and checks of their messages.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>

#include "core/bytes.h"

namespace spillway::testing {

/// Memory that is aligned for a direct read or write. With a `shift`, it begins that many bytes later and is not
/// aligned.
struct Memory {
  explicit Memory(int64_t size, int64_t shift = 0)
      : bytes(size),
        base(std::aligned_alloc(4096, static_cast<size_t>(round_up(size + shift + 1, 4096)))),
        data(static_cast<char*>(base) + shift) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(base); }
  void fill(uint32_t seed) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(random());
  }
  bool same(const Memory& other) const {
    return bytes == other.bytes && std::memcmp(data, other.data, static_cast<size_t>(bytes)) == 0;
  }
  const int64_t bytes;
  void* const base;
  char* const data;
};

inline void expect_parts(const std::string& message, std::initializer_list<std::string> parts) {
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
}

}  // namespace spillway::testing
