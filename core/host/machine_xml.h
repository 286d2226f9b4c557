/// The two steps of machine_from_xml(): a check of the XML before hwloc sees it, and hwloc's reading of it.
#pragma once
#include <string>
#include <string_view>

#include "core/host/machine.h"

namespace spillway {

inline constexpr int kMaxCpus = 1 << 16;  ///< the maximum number of CPUs that a machine in a file may have

/// Throws BadRequest, which says where, unless `xml` is written as lstopo writes. Allowed are UTF-8, lstopo's own
/// document type, and tags with attributes in double quotes, each attribute once. Other document types, instructions,
/// comments and sections are refused. No count of objects may exceed 1024. The number of a CPU or memory node must be
/// present and below kMaxCpus. The limits are needed because hwloc 2.9 multiplies counts without checking for overflow.
/// It also makes bitmaps as long as the highest number, 512 MiB where a number is missing. libxml2 acts on the content
/// of a document type.
void check_machine_xml(std::string_view xml);

/// Reads checked XML in this process. The process may crash, because hwloc 2.9 crashes on much XML that is nearly
/// right. machine_from_xml() therefore calls this function in a child process. Throws BadRequest when hwloc refuses.
Machine import_machine(const std::string& checked_xml);

}  // namespace spillway
