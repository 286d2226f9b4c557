/// A hierarchical allreduce by groups of GPUs: reduce-scatter up the levels, all-gather down.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ddl/comm/communicator.h"
#include "ddl/comm/element.h"
#include "ddl/nccl/gpu_network.h"

namespace spillway::ddl {

/// True when all groups of each level join as many of the level below: `4x2`, not `4+2`.
bool is_even(const Levels& levels);

/// The GPUs of a communicator's ranks. On an even tree level i joins those ranks of a group that have the same part of
/// the vector. Above hosts of L ranks each rank moves S/L bytes. Parts on an uneven tree would not coincide, so there
/// all ranks make one level. Each part is summed on one rank alone, so all ranks get the same bits. The library chooses
/// the order of a sum, which may depend on the part and the size. Blocks the host until the GPU is done, so that a
/// failure of another rank is known at once. Each method is collective and throws CommError naming level and stage.
/// Work under way on the GPU has been ended then.
class HierarchicalNccl {
 public:
  /// Divides `world`, whose ranks are the communicator's. The communicator outlives this object.
  HierarchicalNccl(Communicator& comm, std::unique_ptr<GpuCommunicator> world);

  /// Returns the next number of elements, from `count` on, that can be reduced.
  int64_t padded(int64_t count) const;
  /// Returns the elements that reduce_scatter() leaves on that rank, of `count` elements, padded. All ranks' parts have
  /// one size.
  Range part(int64_t count, int rank) const;
  /// Reduces `count` elements, padded, at `data`. This rank's part(), which is returned, becomes the sum, maximum or
  /// minimum of all ranks' elements there. The other parts are undefined afterwards.
  Range reduce_scatter(void* data, int64_t count, Element element, Reduction reduction);
  /// Hands every rank's part() of `count` elements, padded, at `data` to all ranks.
  void all_gather(void* data, int64_t count, Element element);
  /// Calls the library's own allreduce, of all ranks at once, to compare with. It reduces `count` elements from `from`
  /// to `to`, or in place.
  void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction);
  /// Copies `root`'s bytes to all `members`; only these ranks call it.
  void broadcast(void* data, int64_t bytes, int root, std::span<const int> members);

 private:
  struct Level {
    int number;
    std::unique_ptr<GpuCommunicator> group;  ///< null: all ranks
    int size;
    int place;
  };
  GpuCommunicator& group(const Level& level) { return level.group ? *level.group : *world_; }
  template <class Start>
  void run(GpuCommunicator& group, const CollectivePosition& stage, Start&& start);
  CollectivePosition stage(std::string_view collective, const Level& level, int number) const;
  void divide();
  void abort() noexcept;

  Communicator& comm_;
  const std::unique_ptr<GpuCommunicator> world_;
  std::vector<Level> levels_;
};

}  // namespace spillway::ddl
