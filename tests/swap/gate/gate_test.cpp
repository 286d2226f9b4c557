// Tests of cases that break a naive gate. Each runs plainly, and with everything evicted after every operator.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "core/device/cpu_device.h"
#include "core/memory/memory_range.h"
#include "swap/gate/operator_observer.h"
#include "swap/session.h"
#include "tests/support/checking_observers.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;
using testing::EvictEverything;
using testing::SchemaChecker;

/// Returns true when the tensors are equal up to the rounding of the type's sums, as windows of convolutions are.
bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.is_floating_point() ? at::allclose(a, b, 1e-4, 1e-5) : at::equal(a, b);
}

/// Expects that `work` gives equal results from the same seed without a Session, with an evicting one, and with one
/// that checks schemas. Both Sessions run again with every operator split that can be split.
void expect_unchanged(const std::function<Tensors()>& work) {
  CpuDevice::instance();
  auto run = [&](std::shared_ptr<OperatorObserver> observer, bool open, int64_t split_bytes = kUnlimitedBytes) {
    at::manual_seed(0);
    std::optional<Session> session;
    if (open)
      session.emplace(SessionOptions{.min_page_bytes = 1, .split_bytes = split_bytes, .observer = std::move(observer)});
    return work();
  };
  const Tensors plain = run(nullptr, false);
  const Tensors paged = run(std::make_shared<EvictEverything>(), true);
  auto checker = std::make_shared<SchemaChecker>();
  run(checker, true);
  const Tensors split = run(std::make_shared<EvictEverything>(), true, 1);
  run(checker, true, 1);
  ASSERT_EQ(plain.size(), paged.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], paged[i])) << "tensor " << i;
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(close(plain[i], split[i])) << "tensor " << i;
  EXPECT_TRUE(checker->liars().empty()) << *checker->liars().begin() << " writes what its schema does not say";
  EXPECT_GT(checker->compared(), 0u);
}

TEST(GateTest, BatchNormsRunningStatisticsAreWritten) {
  expect_unchanged([] {
    nn::BatchNorm1d norm(512);
    auto x = at::randn({8, 512});
    at::Tensor y;
    for (int i = 0; i < 3; ++i) y = norm(x * 1.5 + 0.1);
    return Tensors{norm->running_mean.clone(), norm->running_var.clone(), y.detach()};
  });
}

TEST(GateTest, SparseTensorsAndTheirInnerStorages) {
  expect_unchanged([] {
    auto i = at::randint(0, 100, {2, 500}, at::kLong);
    auto s = at::sparse_coo_tensor(i, at::randn({500}), {100, 100});
    auto z = at::randn({100, 100});
    auto coalesced = s.coalesce();
    auto csr = at::relu(at::randn({60, 60})).to_sparse_csr();
    return Tensors{at::_sparse_mm(s, z), coalesced.values().clone(), csr.matmul(at::ones({60, 60}))};
  });
}

TEST(GateTest, SparseGradients) {
  expect_unchanged([] {
    nn::Embedding table(nn::EmbeddingOptions(500, 16).sparse(true));
    torch::optim::SGD sgd(table->parameters(), 0.1);
    auto x = at::randint(0, 500, {32, 4}, at::kLong);
    for (int i = 0; i < 3; ++i) {
      sgd.zero_grad();
      table(x).square().sum().backward();
      sgd.step();
    }
    return Tensors{table->weight.detach().clone()};
  });
}

TEST(GateTest, AStorageThatChangesSizeOrMemory) {
  expect_unchanged([] {
    auto x = at::randn({500});
    auto y = x * 2;
    x.resize_({900});
    x.slice(0, 500).fill_(1);
    auto z = at::randn({64});
    auto w = z + 1;
    z.set_(y.storage());
    w.resize_({0});
    w.resize_({8}).fill_(3);
    auto p = at::randn({100}).requires_grad_();
    auto q = p * 2;
    p.set_data(at::ones({120}));
    return Tensors{x, z, w, (p * 3).detach(), q.detach()};
  });
}

TEST(GateTest, ViewsExpandedAndOverlappingTensors) {
  expect_unchanged([] {
    auto b = at::randn({100, 100});
    auto v = b.slice(0, 10, 20).t();
    auto e = b.slice(0, 0, 1).expand({50, 100});
    auto w = b.as_strided({10, 10}, {3, 7}, 5);
    b.mul_(2);
    return Tensors{v + 1, e * 2, w.clone(), b.view(-1).slice(0, 0, 10'000, 3).contiguous(),
                   at::_unsafe_view(b, {10'000})};
  });
}

TEST(GateTest, AutogradsInPlaceCheckStillSeesWrites) {
  expect_unchanged([] {
    auto x = at::randn({500}).requires_grad_();
    auto y = x.exp();
    y.add_(1);
    try {
      y.sum().backward();
    } catch (const std::exception&) {
      return Tensors{at::ones({1})};
    }
    return Tensors{at::zeros({1})};
  });
}

TEST(GateTest, CustomFunctionsDoubleBackwardAndRetainedGraphs) {
  struct Square : torch::autograd::Function<Square> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      context->save_for_backward({x});
      return x.square();
    }
    static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::tensor_list g) {
      return {2 * context->get_saved_variables()[0] * g[0]};
    }
  };
  expect_unchanged([] {
    auto x = at::randn({500}).requires_grad_();
    auto y = Square::apply(x).exp().sum();
    auto first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    auto second = torch::autograd::grad({first.square().sum()}, {x}, {}, true)[0];
    y.backward({}, true);
    y.backward();
    return Tensors{first.detach(), second, x.grad()};
  });
}

TEST(GateTest, RecurrentAndAttentionLayers) {
  expect_unchanged([] {
    nn::LSTM lstm(nn::LSTMOptions(16, 24).num_layers(2).batch_first(true).dropout(0.1));
    nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(24, 4));
    Tensors parameters = lstm->parameters();
    for (auto& p : attention->parameters()) parameters.push_back(p);
    torch::optim::AdamW adamw(parameters, 1e-2);
    auto x = at::randn({4, 10, 16});
    for (int i = 0; i < 3; ++i) {
      adamw.zero_grad();
      auto h = std::get<0>(lstm(x));
      auto q = h.view({4, 10, 4, 6}).transpose(1, 2);
      auto scaled = at::scaled_dot_product_attention(q, q, q, {}, 0.0, true);
      (std::get<0>(attention(h, h, h)).square().sum() + scaled.sum()).backward();
      adamw.step();
    }
    Tensors result;
    for (auto& p : parameters) result.push_back(p.detach().clone());
    return result;
  });
}

TEST(GateTest, ComplexNumbersAndLazyConjugation) {
  expect_unchanged([] {
    auto a = at::randn({32, 32}, at::kComplexFloat);
    auto b = a.conj().matmul(a);
    return Tensors{at::view_as_real(b).clone(), at::real(a) * 2, at::view_as_real(at::fft_fft2(a)).clone()};
  });
}

TEST(GateTest, QuantizedAndNestedTensorsInnerStorages) {
  expect_unchanged([] {
    auto x = at::randn({50, 40});
    auto q = at::quantize_per_channel(x, at::rand({50}) + 0.1, at::zeros({50}), 0, at::kQInt8);
    auto busy = x + 1;
    return Tensors{q.dequantize(), busy};
  });
  expect_unchanged([] {
    auto n = at::_nested_tensor_from_tensor_list({at::randn({50, 16}), at::randn({30, 16})});
    auto busy = at::randn({16, 16}) + 1;
    return Tensors{at::nested_to_padded_tensor(n * 2, 0.0), busy};
  });
}

TEST(GateTest, AutocastInferenceModeAndChannelsLast) {
  expect_unchanged([] {
    nn::Conv3d conv(nn::Conv3dOptions(4, 8, 3).padding(1));
    auto x = at::randn({2, 4, 8, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast3d);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    auto y = conv(x).to(at::kFloat);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    y.square().mean().backward();
    at::Tensor z;
    {
      c10::InferenceMode inference;
      z = conv(x).relu().clone();
    }
    return Tensors{y.detach(), conv->weight.grad(), z.clone()};
  });
}

TEST(GateTest, ACompositeWithAKernelOfItsOwnIsLeasedLikeAKernel) {
  expect_unchanged([] {
    auto x = at::randn({500}).requires_grad_();
    at::silu(x).sum().backward();  // silu_backward: composite elsewhere, a kernel on the CPU
    return Tensors{x.grad()};
  });
}

TEST(GateTest, GradientAccumulationOverMicroBatches) {
  expect_unchanged([] {
    nn::Linear layer(64, 64);
    for (int i = 0; i < 4; ++i) layer(at::randn({8, 64})).square().mean().backward();
    return Tensors{layer->weight.grad(), layer->bias.grad()};
  });
}

TEST(GateTest, AnOperatorOutsideAtenIsTakenToWriteItsArguments) {
  static auto* library = new torch::Library(torch::Library::DEF, "gate_test", c10::nullopt, __FILE__, __LINE__);
  static bool defined = [] {
    library->def("sneaky(Tensor x) -> ()");
    library->impl("sneaky", c10::DispatchKey::CPU, [](const at::Tensor& x) { x.data_ptr<float>()[0] = 42; });
    return true;
  }();
  (void)defined;
  auto sneaky =
      c10::Dispatcher::singleton().findSchemaOrThrow("gate_test::sneaky", "").typed<void(const at::Tensor&)>();
  CpuDevice::instance();
  Session session({.min_page_bytes = 1, .observer = std::make_shared<EvictEverything>()});
  auto x = at::zeros({1000});
  auto y = x + 1;  // x is evicted, and is clean
  (void)(x + y);
  sneaky.call(x);
  EXPECT_EQ(x[0].item<float>(), 42);
}

TEST(GateTest, OperatorsOfCompiledCodeAreRefused) {
  auto reinterpret = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("inductor::_reinterpret_tensor", "")
                         .typed<at::Tensor(const at::Tensor&, c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt)>();
  const auto x = at::ones({6});
  const std::vector<c10::SymInt> sizes{2, 3}, strides{3, 1};
  EXPECT_EQ(reinterpret.call(x, sizes, strides, 0).sum().item<float>(), 6);
  Session session(SessionOptions{});
  try {
    (void)reinterpret.call(x, sizes, strides, 0);
    ADD_FAILURE() << "ran a part of compiled code";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("torch.compile"), std::string::npos) << error.what();
  }
  EXPECT_EQ(x.sum().item<float>(), 6);
}

TEST(GateTest, ASessionDoesNotOpenInsideATrace) {
  using Modes = c10::impl::TorchDispatchModeTLS;
  constexpr auto kFake = c10::impl::TorchDispatchModeKey::FAKE;
  Modes::set_mode(std::make_shared<c10::impl::PyObject_TorchDispatchMode>(nullptr, nullptr), kFake);
  EXPECT_THROW(Session{SessionOptions{}}, std::logic_error);
  Modes::unset_mode(kFake);
  {
    const c10::impl::IncludeDispatchKeyGuard functionalizes(c10::DispatchKey::Functionalize);
    EXPECT_THROW(Session{SessionOptions{}}, std::logic_error);
  }
  EXPECT_NO_THROW(Session{SessionOptions{}});
}

/// Checks results while their pages are leaving. A page leaves under the pager's lock, also for an allocation of a
/// thread that takes no turn. Meanwhile its storage points to a block that may be freed.
TEST(GateTest, ResultsAreNotLookedAtWhileTheirPagesAreLeaving) {
  static std::atomic<int> stage = 0;
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "gate_test", c10::nullopt, __FILE__, __LINE__);
  static bool defined = [] {
    library->def("same(Tensor x) -> Tensor");
    library->impl("same", c10::DispatchKey::CPU, [](const at::Tensor& x) {
      stage = 1;
      while (stage < 2) std::this_thread::yield();
      return x;
    });
    return true;
  }();
  (void)defined;
  auto same =
      c10::Dispatcher::singleton().findSchemaOrThrow("gate_test::same", "").typed<at::Tensor(const at::Tensor&)>();
  Session session({.min_page_bytes = 1});
  const at::Tensor x = at::ones({1000}).mul(2);
  std::thread other([&] {
    auto entry = session.enter();  // its operators are not traced, so nothing else takes the lock
    EXPECT_EQ(same.call(x).sum().item<float>(), 2000);
  });
  while (stage < 1) std::this_thread::yield();
  session.pager().table().locked([&] {
    c10::StorageImpl& storage = *x.storage().unsafeGetStorageImpl();
    c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    void* const bytes = data.get();
    void* const context = data.release_context();
    const MemoryRange gone = reserve_memory(1 << 16);
    ASSERT_EQ(::mprotect(gone.data(), 1 << 16, PROT_NONE), 0);
    storage.set_data_ptr_noswap({bytes, gone.data() + (1 << 12), data.get_deleter(), data.device()});
    stage = 2;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    (void)data.release_context();
    storage.set_data_ptr_noswap({bytes, context, data.get_deleter(), data.device()});
  });
  other.join();
}

TEST(GateTest, TensorsInADictionaryAreLeased) {
  using Parts = c10::Dict<std::string, at::Tensor>;
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "gate_test", c10::nullopt, __FILE__, __LINE__);
  static bool defined = [] {
    library->def("pick(Tensor x, Dict(str, Tensor) parts) -> Tensor");
    library->impl("pick", c10::DispatchKey::CPU, [](const at::Tensor& x, const Parts& parts) {
      auto y = at::empty_like(x);  // needs room while the parts are read
      y.fill_(parts.at("a").const_data_ptr<float>()[7]);
      return y;
    });
    return true;
  }();
  (void)defined;
  auto pick = c10::Dispatcher::singleton()
                  .findSchemaOrThrow("gate_test::pick", "")
                  .typed<at::Tensor(const at::Tensor&, const Parts&)>();
  expect_unchanged([&] {
    Parts parts;
    parts.insert("a", at::arange(1000, at::kFloat) + 1);
    auto x = at::ones({1000}) * 2;
    return Tensors{pick.call(x, parts), parts.at("a") * 2};
  });
}

/// Checks a packed weight. It keeps the bias that it was given in an opaque object.
TEST(GateTest, TensorsThatAnOperatorKeepsInAnObjectStayHome) {
  expect_unchanged([] {
    auto call = [](const char* name, std::vector<c10::IValue> stack) {
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
      return stack.front();
    };
    auto weight = at::quantize_per_tensor(at::randn({20, 10}), 0.1, 0, at::kQInt8);
    auto packed = call("quantized::linear_prepack", {weight, at::randn({20}) * 2});
    auto x = at::quantize_per_tensor(at::randn({4, 10}), 0.1, 3, at::kQUInt8);
    auto busy = at::randn({100}) + 1;
    return Tensors{call("quantized::linear", {x, packed, 0.2, 5}).toTensor().dequantize(), busy};
  });
}

TEST(GateTest, CollectivesOfC10dAreRefused) {
  static auto* library =
      new torch::Library(torch::Library::FRAGMENT, "_c10d_functional", c10::nullopt, __FILE__, __LINE__);
  static bool defined = [] {
    library->def("gate_test_reduce(Tensor x, str group_name) -> Tensor");
    library->impl("gate_test_reduce", c10::DispatchKey::CPU,
                  [](const at::Tensor& x, c10::string_view) { return x.clone(); });
    return true;
  }();
  (void)defined;
  auto reduce = c10::Dispatcher::singleton()
                    .findSchemaOrThrow("_c10d_functional::gate_test_reduce", "")
                    .typed<at::Tensor(const at::Tensor&, c10::string_view)>();
  Session session(SessionOptions{});
  try {
    (void)reduce.call(at::ones({4}), "a group");
    FAIL() << "ran an asynchronous collective under the gate";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("spillway's collectives"), std::string::npos);
  }
}

TEST(GateTest, MemoryThatIsNotOursIsLeftAlone) {
  std::vector<float> memory(1000, 2);
  Session session({.min_page_bytes = 1, .observer = std::make_shared<EvictEverything>()});
  auto outside = at::from_blob(memory.data(), {1000});
  auto y = outside * 3;
  EXPECT_EQ(outside.data_ptr<float>(), memory.data());
  EXPECT_EQ(y.sum().item<float>(), 6000);
}

}  // namespace
}  // namespace spillway
