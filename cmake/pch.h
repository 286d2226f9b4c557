#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/nn.h>
#include <torch/types.h>
#include <torch/utils.h>
