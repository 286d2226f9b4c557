#include "ddl/allreduce/gradient_buckets.h"

#include <algorithm>

namespace spillway::ddl {

std::vector<GradientBucket> cut_into_buckets(std::span<const GradientShape> parameters, std::span<const size_t> order,
                                             int64_t bucket_bytes) {
  std::vector<GradientBucket> buckets;
  const auto room_in = [&](const GradientBucket& bucket) {
    return std::max<int64_t>(1, bucket_bytes / element_bytes(bucket.element)) - bucket.count;
  };
  for (const size_t parameter : order) {
    const auto [element, count] = parameters[parameter];
    for (int64_t begin = 0; begin < count;) {
      if (buckets.empty() || buckets.back().element != element || room_in(buckets.back()) == 0)
        buckets.push_back({.element = element});
      GradientBucket& bucket = buckets.back();
      const int64_t size = std::min(count - begin, room_in(bucket));
      bucket.pieces.push_back({parameter, {begin, begin + size}, bucket.count});
      bucket.count += size;
      begin += size;
    }
  }
  if (parameters.empty()) return buckets;
  if (buckets.empty()) buckets.emplace_back();  // nothing but empty gradients
  buckets.back().flags = std::ssize(parameters);
  buckets.back().count += buckets.back().flags;
  return buckets;
}

}  // namespace spillway::ddl
