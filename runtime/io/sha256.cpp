#include "runtime/io/sha256.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace spillway::runtime {
namespace {

void check(int code, const char* call) {
  if (code != 1) throw std::runtime_error(std::string("[sha256] OpenSSL's ") + call + " failed");
}

EVP_MD_CTX* start(void* context) {
  check(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context), EVP_sha256(), nullptr), "EVP_DigestInit_ex");
  return static_cast<EVP_MD_CTX*>(context);
}

}  // namespace

void Sha256::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  start(context_.get());
}

void Sha256::add(const void* bytes, size_t count) {
  check(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes, count), "EVP_DigestUpdate");
}

Sha256::Digest Sha256::finish() {
  Digest digest;
  check(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), digest.data(), nullptr), "EVP_DigestFinal_ex");
  start(context_.get());
  return digest;
}

std::string hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace spillway::runtime
