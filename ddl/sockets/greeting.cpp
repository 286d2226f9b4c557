#include "ddl/sockets/greeting.h"

#include <sstream>
#include <stdexcept>
#include <string_view>

#include "core/error.h"

namespace spillway::ddl {
namespace {

constexpr size_t kMaxText = 2048;
/// The longest name of an abstract Unix socket: the system's 108 bytes without the zero before it.
constexpr size_t kMaxUnixName = 107;

std::string hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool equal(std::string_view one, std::string_view other) {
  unsigned difference = one.size() == other.size() ? 0 : 1;
  for (size_t i = 0; i < one.size() && i < other.size(); ++i) difference |= static_cast<uint8_t>(one[i] ^ other[i]);
  return difference == 0;
}

/// Returns the proof of an address; a dash without a secret.
std::string signature(int rank, std::string_view unsigned_text, const std::string& secret) {
  return secret.empty() ? "-" : hex(hmac_sha256(secret, str("address of rank ", rank, ": ", unsigned_text)));
}

Digest proof_of(Hello hello, const std::string& secret) {
  hello.proof = {};
  return hmac_sha256(secret, {reinterpret_cast<const char*>(&hello), sizeof hello});  // NOLINT: a message is its bytes
}

}  // namespace

std::string format_address(int rank, const RankAddress& address, const std::string& secret) {
  const std::string text = str("spillway ", kProtocol, ' ', address.host, ' ', address.token, ' ', address.life, ' ',
                               address.address, ' ', address.port, ' ', address.unix_name);
  return str(text, ' ', signature(rank, text, secret));
}

RankAddress parse_address(int rank, const std::string& text, const std::string& secret) {
  RankAddress address;
  std::istringstream words(text.substr(0, kMaxText));
  std::string magic, proof, more;
  int64_t protocol = 0;
  words >> magic >> protocol;
  if (!words || magic != "spillway")
    throw std::runtime_error(str("rank ", rank, " published something else than its addresses"));
  if (protocol != kProtocol)
    throw std::runtime_error(str("rank ", rank, " runs another version of Spillway: it speaks protocol ", protocol,
                                 ", this rank ", kProtocol));
  words >> address.host >> address.token >> address.life >> address.address >> address.port >> address.unix_name >>
      proof;
  const bool good =
      !words.fail() && !(words >> more) && text.size() <= kMaxText && address.unix_name.size() <= kMaxUnixName;
  if (!good) throw std::runtime_error(str("rank ", rank, " published something else than its addresses"));
  if ((proof == "-") != secret.empty())
    throw std::runtime_error(str("rank ", rank, " has ", secret.empty() ? "a" : "no", " secret, and this rank has ",
                                 secret.empty() ? "none" : "one", "; SPILLWAY_SECRET must be the same on all ranks"));
  if (!equal(proof, signature(rank, std::string_view(text).substr(0, text.rfind(' ')), secret)))
    throw std::runtime_error(str("the addresses of rank ", rank,
                                 " are not signed with this rank's secret; SPILLWAY_SECRET must be the same on all "
                                 "ranks"));
  return address;
}

void Hello::sign(const std::string& secret) {
  if (!secret.empty()) proof = proof_of(*this, secret);
}

bool Hello::is_for(int own_rank, int ranks, uint64_t own_token, const std::string& secret) const {
  const bool known =
      magic == kMagic && version == kProtocol && token == own_token && rank >= 0 && rank < ranks && rank != own_rank;
  return known && (secret.empty() || ddl::equal(proof, proof_of(*this, secret)));
}

}  // namespace spillway::ddl
