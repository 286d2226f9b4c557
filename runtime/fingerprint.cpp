#include "runtime/fingerprint.h"

#include <ATen/ATen.h>
#include <openssl/evp.h>

#include <map>
#include <memory>
#include <stdexcept>

#include "swap/session.h"

namespace spillway {
namespace {

void check(int code, const char* call) {
  if (code != 1) throw std::runtime_error(std::string("[fingerprint] OpenSSL's ") + call + " failed");
}

}  // namespace

std::string weights_sha256(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& p : module.named_parameters()) tensors.emplace(p.key(), p.value());
  for (const auto& b : module.named_buffers()) tensors.emplace(b.key(), b.value());

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  check(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr), "EVP_DigestInit_ex");
  for (const auto& [name, tensor] : tensors) {
    at::Tensor dense = tensor.detach().contiguous();
    auto lent = resident_read(dense);
    check(EVP_DigestUpdate(context.get(), dense.const_data_ptr(), dense.nbytes()), "EVP_DigestUpdate");
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  check(EVP_DigestFinal_ex(context.get(), digest, &length), "EVP_DigestFinal_ex");
  std::string hex;
  for (unsigned i = 0; i < length; ++i) {
    static constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

}  // namespace spillway
