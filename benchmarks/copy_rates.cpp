// Rates of the copy lanes between a device and its host memory, alone and beside products of matrices.
//     build/bin/copy_rates [DEVICE [MIB [COPIES]]]
// Columns: GB/s of each direction alone, GB/s beside products, and what the products' time grows by meanwhile. Medians
// of five rounds.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/clock.h"
#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/median.h"

namespace {

using namespace spillway;

struct Rates {
  double seconds = 0;  // until the last copy was done
  double product_seconds = 0;
};

class Bench {
 public:
  Bench(Device& device, int64_t bytes, int copies)
      : device_(device), bytes_(bytes), copies_(copies), host_(device.reserve_host_memory(2 * bytes)) {
    const at::TensorOptions place(device.torch_device());
    leaving_ = at::ones({bytes}, place.dtype(at::kByte));
    coming_ = at::zeros({bytes}, place.dtype(at::kByte));
    left_ = at::randn({kSide, kSide}, place);
    right_ = at::randn({kSide, kSide}, place);
    // One copy pins the memory, and one product loads the kernel. As many products as take about as long as the copies.
    (void)run(true, true, 1);
    const double copies_take = run(true, true, 0).seconds, one_takes = run(false, false, 1).product_seconds;
    products_ = std::max(1, static_cast<int>(copies_take / one_takes));
  }

  void print(const char* name, bool out, bool in) {
    std::vector<double> alone, beside, grown;
    for (int round = 0; round < 5; ++round) {
      const double products_alone = run(false, false, products_).product_seconds;
      const double all = static_cast<double>(bytes_) * copies_ * (out + in) / 1e9;
      alone.push_back(all / run(out, in, 0).seconds);
      const Rates both = run(out, in, products_);
      beside.push_back(all / both.seconds);
      grown.push_back(both.product_seconds / products_alone);
    }
    std::printf("%-14s %8.2f %8.2f %8.3f\n", name, median(alone), median(beside), median(grown));
  }

 private:
  static constexpr int64_t kSide = 2048;

  /// Submits the copies first, because a copy waits for the operators that came before it.
  Rates run(bool out, bool in, int products) {
    settle();
    const auto start = Clock::now();
    std::vector<Ticket> tickets;
    for (int i = 0; i < copies_; ++i) {
      if (out) tickets.push_back(out_->copy(host_.data(), leaving_.mutable_data_ptr(), bytes_));
      if (in) tickets.push_back(in_->copy(coming_.mutable_data_ptr(), host_.data() + bytes_, bytes_));
    }
    for (int i = 0; i < products; ++i) at::mm_out(product_, left_, right_);
    if (products) settle();
    Rates rates{.product_seconds = seconds_since(start)};
    for (const Ticket& ticket : tickets) ticket.wait();
    rates.seconds = seconds_since(start);
    return rates;
  }
  void settle() { (void)product_.flatten()[0].item<float>(); }

  Device& device_;
  const int64_t bytes_;
  const int copies_;
  const MemoryRange host_;
  int products_ = 1;
  at::Tensor leaving_, coming_, left_, right_;
  at::Tensor product_ = at::zeros({kSide, kSide}, at::TensorOptions(device_.torch_device()));
  std::unique_ptr<Timeline> out_ = device_.make_timeline("out"), in_ = device_.make_timeline("in");
};

}  // namespace

int main(int argc, char** argv) {
  at::NoGradGuard no_grad;
  const char* device = argc > 1 ? argv[1] : "cpu";
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 64;
  const int copies = argc > 3 ? std::atoi(argv[3]) : 16;
  if (mib < 1 || copies < 1) {
    std::fprintf(stderr, "MIB and COPIES are 1 or more\n");
    return 2;
  }
  Bench bench(open_device(device), mib << 20, copies);
  std::printf("%d copies of %lld MiB, device %s\n%-14s %8s %8s %8s\n", copies, static_cast<long long>(mib), device,
              "direction", "alone", "beside", "products");
  bench.print("to the host", true, false);
  bench.print("to the device", false, true);
  bench.print("both", true, true);
}
