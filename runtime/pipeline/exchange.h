/// Small exchanges of the stages of a model beside their messages.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace spillway::ddl {
class Communicator;
}

namespace spillway::runtime {

/// Returns every rank's text, in rank order. Meant for small ones. Collective. Throws CommError.
std::vector<std::string> gather_texts(ddl::Communicator& comm, const std::string& own);

/// Returns the rows of all ranks by ascending number, from each rank's rows [n, k] and their numbers. All ranks' rows
/// have one type and one k. Collective. Throws CommError.
at::Tensor gather_rows(ddl::Communicator& comm, const at::Tensor& rows, const std::vector<int64_t>& numbers);

}  // namespace spillway::runtime
