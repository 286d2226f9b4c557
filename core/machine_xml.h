/// A check of hwloc's XML before hwloc itself sees it.
#pragma once
#include <string_view>

namespace spillway {

/// Throws BadRequest, which says where, unless `xml` is written as lstopo writes: UTF-8, no document type but lstopo's,
/// no instructions, comments or sections; tags with attributes in double quotes, each once; and no count of objects
/// above 1024: hwloc 2.9 multiplies counts without looking at overflow, and libxml2 acts on what a document type says.
void check_machine_xml(std::string_view xml);

}  // namespace spillway
