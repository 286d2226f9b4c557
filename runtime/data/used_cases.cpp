#include "runtime/data/used_cases.h"

#include <set>

namespace spillway::runtime {

std::vector<int64_t> used_cases(Sampler sampler, const Split& split, int64_t batches, int rank, int world) {
  std::set<int64_t> used;
  for (int64_t i = 0; i < batches && used.size() < split.train.size(); ++i)
    for (const int64_t index : sampler.next()) used.insert(index);
  used.insert(0);
  for (size_t i = 0; i < split.validation.size(); ++i)
    if (measures_on(i, rank, world)) used.insert(split.validation[i]);
  return {used.begin(), used.end()};
}

}  // namespace spillway::runtime
