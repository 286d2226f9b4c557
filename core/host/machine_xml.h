/// The two steps of machine_from_xml(): a check of hwloc's XML before hwloc sees it, and hwloc's reading.
#pragma once
#include <string>
#include <string_view>

#include "core/host/machine.h"

namespace spillway {

inline constexpr int kMostCpus = 1 << 16;  ///< the most CPUs that a machine in a file may have

/// Throws BadRequest, which says where, unless `xml` is written as lstopo writes: UTF-8, no document type but lstopo's,
/// no instructions, comments or sections; tags with attributes in double quotes, each once; no count of objects above
/// 1024; and a CPU's and a memory node's number there and below kMostCpus. hwloc 2.9 multiplies counts without looking
/// at overflow and makes bitmaps as long as the highest number, 512 MiB where one is missing; libxml2 acts on what a
/// document type says.
void check_machine_xml(std::string_view xml);

/// Reads checked XML in this process, which may crash: hwloc 2.9 does on much that is nearly right. machine_from_xml()
/// calls this in a child. Throws BadRequest when hwloc refuses.
Machine import_machine(const std::string& checked_xml);

}  // namespace spillway
