/// Totals of the copy lanes and the disk.
#pragma once
#include "core/timeline.h"

namespace spillway::swap {

/// Bytes of each lane, and the seconds that it was busy with them.
struct LaneTotals {
  CopyTotals out = {}, in = {};
  CopyTotals to_disk = {}, from_disk = {};

  LaneTotals since(const LaneTotals& before) const {
    auto difference = [](const CopyTotals& now, const CopyTotals& then) {
      return CopyTotals{now.bytes - then.bytes, now.seconds - then.seconds};
    };
    return {difference(out, before.out), difference(in, before.in), difference(to_disk, before.to_disk),
            difference(from_disk, before.from_disk)};
  }
};

}  // namespace spillway::swap
