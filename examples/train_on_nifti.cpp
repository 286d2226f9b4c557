// Trains the 3-D U-Net on a folder of NIfTI cases in the BraTS layout, under a budget of 80 % of its need.
//
//     $ build/bin/spillway phantom --out phantoms --cases 4 --edge 48
//     $ build/bin/train_on_nifti phantoms
//     one step without a budget peaks at 149 MiB; the floor is 102 MiB (aten::convolution_backward);
//     the budget is 119 MiB
//     step 5: loss -0.0266
//     step 10: loss -0.0664
//     dice 0.026 before, 0.305 after; peak 119 MiB of 119 MiB
#include <cstdio>

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/training/train.h"

namespace {

struct Printer final : spillway::TrainListener {
  void on_decision(const std::string& text) override { std::printf("%s\n", text.c_str()); }
  void on_step(int64_t step, int64_t, const spillway::StepOutcome& outcome, int64_t) override {
    if (step % 5 == 0) std::printf("step %lld: loss %.4f\n", static_cast<long long>(step), outcome.loss);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: train_on_nifti FOLDER\n");
    return 2;
  }
  try {
    spillway::TrainOptions options;
    options.data.source = argv[1];
    options.model.filters = 8;
    options.steps = 10;
    options.optimizer.lr = 5e-3;
    options.memory.budget = spillway::BudgetRequest::parse("80%");
    Printer printer;
    const spillway::TrainResult result = spillway::train(options, {}, printer);
    std::printf("dice %.3f before, %.3f after; peak %s of %s\n", result.metric.front().value,
                result.metric.back().value, spillway::format_bytes(result.peak_bytes).c_str(),
                spillway::format_bytes(result.budget_bytes).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
