// Without torch/nn.h: GCC instantiates again, in every file, what a precompiled header's inline functions use, and all
// modules are 5 s of that. Files include the modules that they name.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/types.h>
#include <torch/utils.h>
