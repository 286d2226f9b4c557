/// Random-number generators that belong to one case. The global generator is never used, because its state belongs to
/// training.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>

namespace spillway::runtime {

/// Makes a CPU generator for (seed, stream). The same pair gives the same numbers; different pairs give unrelated ones.
inline at::Generator make_generator(uint64_t seed, int64_t stream) {
  // SplitMix64's finalizer (Steele et al. 2014) keeps neighboring seeds and streams from overlapping.
  auto mix = [](uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  };
  return at::make_generator<at::CPUGeneratorImpl>(mix(mix(seed) + stream));
}

}  // namespace spillway::runtime
