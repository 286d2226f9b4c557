#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/io/sha256.h"
#include "runtime/io/tensor_header.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
using namespace runtime;
using namespace swap;
namespace {

constexpr size_t kLengthBytes = 8;

/// Returns the header's text, or an empty text when the file has none.
std::string_view header_in(std::string_view file) {
  uint64_t length = 0;
  if (file.size() < kLengthBytes) return {};
  std::memcpy(&length, file.data(), kLengthBytes);
  return length > file.size() - kLengthBytes ? std::string_view() : file.substr(kLengthBytes, length);
}

std::string digest_of(std::string_view bytes) {
  Sha256 sha;
  sha.add(bytes.data(), bytes.size());
  const auto digest = sha.finish();
  return {digest.begin(), digest.end()};
}

void check_places(const TensorHeader& header, int64_t data_bytes) {
  int64_t sum = 0;
  for (const auto& [name, place] : header.places) {
    require(place.offset >= 0 && place.bytes >= 0 && place.offset <= data_bytes - place.bytes, "tensors are inside");
    require(place.index < header.places.size(), "tensors are numbered");
    sum += place.bytes;
  }
  require(sum == data_bytes, "tensors share the bytes");
}

/// Returns the file with matching checksums, as an attacker would write them.
std::string with_checksums(std::string_view input, const TensorHeader& header) {
  std::string file(input);
  const std::string_view text = header_in(input);
  const auto found = header.places.find(kDigests);
  const size_t data = kLengthBytes + text.size();
  const auto sign = [&](size_t row, std::string_view bytes) {
    const auto end = static_cast<size_t>(kDigestBytes) * (row + 1);
    if (end <= static_cast<size_t>(found->second.bytes))
      file.replace(data + static_cast<size_t>(found->second.offset) + end - kDigestBytes, kDigestBytes,
                   digest_of(bytes));
  };
  if (found == header.places.end()) return file;
  for (const auto& [name, place] : header.places)
    sign(place.index + 1, input.substr(data + static_cast<size_t>(place.offset), static_cast<size_t>(place.bytes)));
  sign(0, text);
  return file;
}

}  // namespace

void safetensors(std::string_view input) {
  const std::string_view text = header_in(input);
  TensorHeader header;
  const auto data_bytes = static_cast<int64_t>(input.size() - std::min(input.size(), kLengthBytes + text.size()));
  const bool parsed = taken([&] { header = parse_tensor_header(text, data_bytes); });
  if (parsed) check_places(header, data_bytes);
  const auto path = scratch_file("c.safetensors", parsed ? with_checksums(input, header) : std::string(input));
  taken([&] {
    const TensorContents contents(path);
    require(parsed, "what the file says is what its header says");
    require(contents.find(kDigests) == nullptr, "checksums are no tensor");
    for (const auto& tensor : header.places) {
      const TensorPlace* found = contents.find(tensor.first);
      if (!found) continue;
      std::vector<char> bytes(static_cast<size_t>(found->bytes));
      taken([&] { contents.read(tensor.first, *found, bytes.data()); });
    }
  });
}

}  // namespace spillway::fuzz
