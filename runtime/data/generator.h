/// Random numbers that belong to one case: never the global generator, whose state belongs to training.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>

namespace spillway {

/// A CPU generator for (seed, stream): the same pair gives the same numbers, different pairs unrelated ones.
inline at::Generator make_generator(uint64_t seed, int64_t stream) {
  // SplitMix64's finaliser (Steele et al. 2014), so that neighbouring seeds and streams do not overlap.
  auto mix = [](uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  };
  return at::make_generator<at::CPUGeneratorImpl>(mix(mix(seed) + static_cast<uint64_t>(stream)));
}

}  // namespace spillway
