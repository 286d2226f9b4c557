#include "runtime/training/used_cases.h"

#include <set>

#include "runtime/data/sampler.h"

namespace spillway::runtime {

std::vector<int64_t> used_cases(const TrainOptions& options, const Split& split, int64_t drawn, int64_t steps, int rank,
                                int world) {
  std::set<int64_t> learned;
  Sampler sampler(split.train, options.data.batch, rank, world, options.seed);
  sampler.skip(drawn);
  for (int64_t i = 0; i < steps * options.optimizer.accumulate && learned.size() < split.train.size(); ++i)
    for (const int64_t index : sampler.next()) learned.insert(index);
  learned.insert(0);
  for (size_t i = 0; i < split.validation.size(); ++i)
    if (measures_on(i, rank, world)) learned.insert(split.validation[i]);
  return {learned.begin(), learned.end()};
}

}  // namespace spillway::runtime
