// Tests of everything that can happen to a storage: other sizes, other memory, other owners, pointers taken from it.
#include <ATen/ops/_lazy_clone.h>
#include <ATen/ops/from_file.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "swap/gate/storage_page.h"
#include "tests/support/unchanged.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;
using testing::evicting_everything;
using testing::expect_unchanged;
using testing::Tensors;

TEST(StoragesTest, ResizeGrowsShrinksAndEmpties) {
  expect_unchanged([] {
    auto x = at::randn({500});
    auto busy = x * 2;
    x.resize_({900});
    x.slice(0, 500).fill_(1);
    x.resize_({300});
    auto w = at::randn({64}) + 1;
    w.resize_({0});
    w.resize_({8}).fill_(3);
    auto like = at::zeros({1});
    like.resize_as_(busy).copy_(busy);
    return Tensors{x, w, like};
  });
}

TEST(StoragesTest, SetGivesATensorOtherMemory) {
  expect_unchanged([] {
    auto x = at::randn({500});
    auto y = x * 2;
    auto z = at::randn({64}) + 1;
    z.set_(y.storage());
    auto w = at::randn({10});
    w.set_(z);
    w.add_(1);
    return Tensors{x, y, z, w};
  });
}

TEST(StoragesTest, SetDataOfAParameter) {
  expect_unchanged([] {
    auto p = at::randn({100}).requires_grad_();
    auto q = p * 2;
    p.set_data(at::ones({100}) * 0.5);
    (p * 3).sum().backward();
    const auto& grad = p.grad();
    p.set_data(at::ones({120}));
    return Tensors{q.detach(), (p * 2).detach(), grad};
  });
}

TEST(StoragesTest, WritesThroughDataThatAutogradDoesNotSee) {
  expect_unchanged([] {
    auto p = at::randn({1000}).requires_grad_();
    auto y = p.exp();
    auto bare = p.variable_data();
    bare.mul_(0.5);
    auto detached = p.detach();
    detached.add_(1);
    y.sum().backward();
    return Tensors{p.detach().clone(), p.grad(), y.detach()};
  });
}

TEST(StoragesTest, CopiesOfModules) {
  expect_unchanged([] {
    auto net = nn::Sequential(nn::Linear(30, 40), nn::BatchNorm1d(40), nn::ReLU(), nn::Linear(40, 5));
    auto x = at::randn({8, 30});
    net->forward(x).sum().backward();
    auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
    auto y = copy->forward(x);
    Tensors result{y.detach()};
    for (auto& p : copy->parameters()) result.push_back(p.detach().clone());
    for (auto& p : net->parameters()) result.push_back(p.grad().clone());
    return result;
  });
}

TEST(StoragesTest, LazyClones) {
  expect_unchanged([] {
    auto a = at::randn({1000});
    auto busy = a + 1;
    auto lazy = at::_lazy_clone(a);
    auto third = at::_lazy_clone(lazy);
    auto sum = a + lazy;
    lazy.mul_(2);  // materializes the clone
    auto before = a + 0;
    a.add_(1);      // materializes the original, too
    third.sub_(1);  // the last one takes the memory over
    auto again = third * 2;
    third.add_(5);
    return Tensors{a, lazy, third, again, before, sum, busy};
  });
}

TEST(StoragesTest, ALazyClonesOriginalIsNotMovedWhileTheyShare) {
  Session session(evicting_everything());
  auto a = at::arange(1000, at::kFloat);
  auto b = at::_lazy_clone(a);
  const void* memory = a.const_data_ptr();
  (void)(b + 1);
  EXPECT_EQ(a.const_data_ptr(), memory);
  EXPECT_EQ(b.const_data_ptr(), memory);
  EXPECT_TRUE(c10::impl::cow::is_cow_data_ptr(a.storage().data_ptr()));
  a.add_(1);
  EXPECT_EQ(a[3].item<float>(), 4);
  EXPECT_EQ(b[3].item<float>(), 3);
}

TEST(StoragesTest, MemoryOfOthersIsLeftAlone) {
  std::vector<float> memory(1000, 2);
  bool freed = false;
  {
    Session session(evicting_everything());
    auto outside = at::from_blob(memory.data(), {1000}, [&](void*) { freed = true; });
    auto y = outside * 3;
    outside.add_(1);
    EXPECT_EQ(outside.data_ptr<float>(), memory.data());
    EXPECT_EQ(memory[999], 3);
    EXPECT_EQ(y.sum().item<float>(), 6000);
  }
  EXPECT_TRUE(freed);
}

TEST(StoragesTest, SharedFileMemoryIsLeftAlone) {
  const std::string path = ::testing::TempDir() + "spillway_storages_test.bin";
  std::ofstream(path, std::ios::binary) << std::string(4000, '\0');
  {
    Session session(evicting_everything());
    auto shared = at::from_file(path, /*shared=*/true, 1000, at::kFloat);
    const void* memory = shared.const_data_ptr();
    auto y = shared + 1;
    shared.add_(7);
    EXPECT_EQ(shared.const_data_ptr(), memory);
    EXPECT_EQ(y.sum().item<float>(), 1000);
  }
  float first = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&first), sizeof first);
  std::remove(path.c_str());
  EXPECT_EQ(first, 7);
}

TEST(StoragesTest, FreshMemoryMayBeWrittenThroughAPointerBeforeAnOperatorSeesIt) {
  expect_unchanged([] {
    auto x = at::empty({2000});
    auto y = at::randn({2000});  // needs room meanwhile
    for (int i = 0; i < 2000; ++i) x.data_ptr<float>()[i] = static_cast<float>(i);
    auto list = at::tensor({3.0, 1.0, 2.0});
    return Tensors{x, x * y, list * 2};
  });
}

/// Expects that the pointer of a lent tensor stays valid over operators, whatever they do.
void expect_stays(const at::Tensor& lent, const float* memory) {
  ASSERT_EQ(lent.const_data_ptr<float>(), memory);
  lent.data_ptr<float>()[5] += 1;
  const float written = memory[5];
  auto doubled = lent * 2;
  auto busy = doubled + 1;
  ASSERT_EQ(lent.const_data_ptr<float>(), memory);
  EXPECT_EQ(memory[5], written);
  EXPECT_EQ(doubled[5].item<float>(), 2 * written);
}

TEST(StoragesTest, LentMemoryThatNoOperatorHasSeenStaysWhereItIs) {
  Session session(evicting_everything());
  auto fresh = at::empty({2000});
  std::optional<Resident> lent(resident(fresh)), again(resident_read(fresh));
  auto* memory = fresh.data_ptr<float>();
  std::fill_n(memory, 2000, 3.0f);
  expect_stays(fresh, memory);
  lent.reset();
  expect_stays(fresh, memory);
  again.reset();
  (void)(fresh * 2);
  EXPECT_NE(page_of(*fresh.storage().unsafeGetStorageImpl()), nullptr) << "a page as any other from now on";
}

TEST(StoragesTest, LentMemoryThatWasBornBeforeTheSessionIsNotMoved) {
  at::Tensor born;
  {
    // LibTorch's own allocator, as before the first Session of the process.
    auto memory = c10::GetDefaultCPUAllocator()->allocate(8000);
    std::memset(memory.get(), 0, 8000);
    c10::Storage storage(c10::Storage::use_byte_size_t(), 8000, std::move(memory), c10::GetDefaultCPUAllocator(), true);
    born = at::empty({0}).set_(storage, 0, {2000}, {1});
  }
  Session session(evicting_everything());
  {
    auto lent = resident(born);
    expect_stays(born, born.const_data_ptr<float>());
  }
  EXPECT_EQ((born * 2)[5].item<float>(), 2 * born[5].item<float>());
}

TEST(StoragesTest, WhatIsLentStaysWhereItIsInLaterSessionsToo) {
  at::Tensor kept;
  std::optional<Resident> lent;
  {
    Session session(evicting_everything());
    kept = at::arange(2000, at::kFloat) + 1;
    lent.emplace(resident(kept));
  }
  Session session(evicting_everything());
  expect_stays(kept, kept.const_data_ptr<float>());
  lent.reset();
  EXPECT_EQ((kept * 2)[7].item<float>(), 16);
}

/// Checks storages that are not resizable. LibTorch marks a storage so when another library holds its pointer, as NumPy
/// does.
TEST(StoragesTest, MemoryThatIsMarkedAsHeldStaysFromTheNextOperatorOn) {
  Session session(evicting_everything());
  auto x = at::arange(2000, at::kFloat) + 1;
  (void)(x * 2);
  x.storage().unsafeGetStorageImpl()->set_resizable(false);
  (void)(x * 2);
  expect_stays(x, x.const_data_ptr<float>());
}

TEST(StoragesTest, ReadingAndComparingValues) {
  expect_unchanged([] {
    auto x = at::arange(2000, at::kFloat) / 3;
    const auto last = x[1999].item<double>();
    const bool same = at::equal(x, x.clone()) && at::allclose(x, x + 1e-9);
    return Tensors{at::scalar_tensor(last), at::scalar_tensor(same ? 1 : 0), x.nonzero(), x.masked_select(x > 600)};
  });
}

/// Checks printing, which converts with an operator and reads the result through a pointer. On one thread no page
/// leaves in between, unless everything is evicted after every operator.
TEST(StoragesTest, Printing) {
  auto print = [](int64_t count) {
    std::ostringstream text;
    text << at::arange(count, at::kFloat) / 3;
    return text.str();
  };
  const std::string large = print(5000), small = print(300);
  {
    Session session({.budget_bytes = CpuDevice::instance().ledger().used_bytes() + (200 << 10), .min_page_bytes = 1});
    auto busy = at::ones({40'000});  // most of the budget
    EXPECT_EQ(print(5000), large);
    EXPECT_GT(session.stats().pager.page_outs, 0);
  }
  Session session({.observer = std::make_shared<testing::EvictEverything>()});
  EXPECT_EQ(print(300), small);  // below min_page_bytes
}

TEST(StoragesTest, SavingAbsentTensorsIsAClearErrorAndLendingThemWorks) {
  Session session(evicting_everything());
  nn::Linear layer(40, 50);
  (void)layer(at::ones({1, 40}));
  std::stringstream file;
  try {
    torch::save(layer, file);
    FAIL() << "saved what is absent";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("resident(tensor)"), std::string::npos) << error.what();
  }
  std::stringstream whole;
  {
    std::vector<Resident> lent;
    for (auto& p : layer->parameters()) lent.push_back(resident_read(p));
    torch::save(layer, whole);
  }
  nn::Linear loaded(40, 50);
  torch::load(loaded, whole);
  EXPECT_TRUE(at::equal(loaded->weight, layer->weight));
  EXPECT_TRUE(at::equal(loaded->bias, layer->bias));
  // LibTorch makes storages of its own for the tensors that it loads. They are paged like any others.
  Page* page = page_of(*loaded->weight.storage().unsafeGetStorageImpl());
  ASSERT_NE(page, nullptr);
  EXPECT_EQ(page->block, nullptr);
}

}  // namespace
}  // namespace spillway
