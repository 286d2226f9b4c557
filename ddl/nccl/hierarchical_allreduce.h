/// Which groups of cards reduce what: reduce-scatter up the levels, all-gather down, on cards.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ddl/comm/communicator.h"
#include "ddl/comm/element.h"
#include "ddl/nccl/gpu_network.h"

namespace spillway::ddl {

/// Whether all groups of each level join as many of the level below: `4x2`, not `4+2`.
bool is_even(const Levels& levels);

/// The cards of a communicator's ranks. On an even tree level i joins those ranks of a group that have the same part of
/// the vector: above hosts of L ranks S/L bytes a rank move. Parts on an uneven tree would not coincide, so there all
/// ranks make one level. Each part is summed on one rank alone, so all get the same bits; in which order, the library
/// knows, and it may depend on the part and the size. Blocks the host until the card is done, so that what
/// happens to other ranks is known at once. Each method is collective and throws CommError naming level and stage;
/// what is under way on the card has been ended then.
class DeviceLevels {
 public:
  /// Divides `world`, whose ranks are the communicator's, which outlives this.
  DeviceLevels(Communicator& comm, std::unique_ptr<DeviceGroup> world);

  /// The next number of elements that can be reduced.
  int64_t padded(int64_t count) const;
  /// Of `count` elements, padded: those that reduce_scatter() leaves on that rank, of one size on all.
  Range part(int64_t count, int rank) const;
  /// Of `count` elements, padded, at `data`: this rank's part(), which is returned, becomes the sum, maximum or minimum
  /// of all ranks'; the others are undefined afterwards.
  Range reduce_scatter(void* data, int64_t count, Element element, Reduction reduction);
  /// Of `count` elements, padded, at `data`, everyone's part() is handed to all.
  void all_gather(void* data, int64_t count, Element element);
  /// The library's own allreduce, of all ranks at once, from `from` to `to`, `count` elements, or in place: to compare
  /// with.
  void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction);
  /// Copies `root`'s bytes to all `members`, the only ones who call it.
  void broadcast(void* data, int64_t bytes, int root, std::span<const int> members);

 private:
  struct Level {
    int number;
    std::unique_ptr<DeviceGroup> group;  ///< null: all ranks
    int size;
    int place;
  };
  DeviceGroup& group(const Level& level) { return level.group ? *level.group : *world_; }
  template <class Start>
  void run(DeviceGroup& group, const Stage& stage, Start&& start);
  Stage stage(std::string_view collective, const Level& level, size_t number) const;
  void divide();
  void abort() noexcept;

  Communicator& comm_;
  const std::unique_ptr<DeviceGroup> world_;
  std::vector<Level> levels_;
};

}  // namespace spillway::ddl
