#include "runtime/pipeline/exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "swap/session.h"

namespace spillway::runtime {

std::vector<std::string> gather_texts(ddl::Communicator& comm, const std::string& own) {
  const uint64_t size = own.size();
  std::vector<uint64_t> sizes(comm.size());
  ddl::allgather(comm, std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  const size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = own, all(most * comm.size(), '\0');
  padded.resize(most);
  ddl::allgather(comm, std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) texts.push_back(all.substr(rank * most, sizes[rank]));
  return texts;
}

at::Tensor gather_rows(ddl::Communicator& comm, const at::Tensor& rows, const std::vector<int64_t>& numbers) {
  const at::Tensor own = rows.cpu().contiguous();
  const size_t row_bytes = rows.size(1) * rows.element_size();
  std::string packed(numbers.size() * (sizeof(int64_t) + row_bytes), '\0');
  {
    const auto lent = resident_read(own);
    for (size_t i = 0; i < numbers.size(); ++i) {
      char* entry = packed.data() + i * (sizeof(int64_t) + row_bytes);
      std::memcpy(entry, &numbers[i], sizeof(int64_t));
      std::memcpy(entry + sizeof(int64_t), static_cast<const char*>(own.const_data_ptr()) + i * row_bytes, row_bytes);
    }
  }
  std::map<int64_t, std::string> by_number;
  for (const std::string& text : gather_texts(comm, packed))
    for (size_t begin = 0; begin < text.size(); begin += sizeof(int64_t) + row_bytes) {
      int64_t number = 0;
      std::memcpy(&number, text.data() + begin, sizeof number);
      by_number[number] = text.substr(begin + sizeof number, row_bytes);
    }
  const at::Tensor all = at::empty({std::ssize(by_number), rows.size(1)}, own.options());
  {
    const auto lent = resident(all);
    char* to = static_cast<char*>(all.mutable_data_ptr());
    for (const auto& [number, row] : by_number) {
      std::memcpy(to, row.data(), row_bytes);
      to += row_bytes;
    }
  }
  return all.to(rows.device());
}

}  // namespace spillway::runtime
