// Tests of collectives on tensors of CUDA GPUs. They are skipped, and counted, where there are not enough GPUs.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gpu_operators.h"
#include "ddl/torch/gradient_allreduce.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;

constexpr std::array kTypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong};
constexpr std::array kReductions{Reduction::sum, Reduction::average, Reduction::maximum, Reduction::minimum};

at::Device gpu(int index = 0) {
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      (void)open_device("cuda");
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

class SeveralGpusTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    gpus_ = +c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();  // a number, not a character
    if (gpus_ < 2) GTEST_SKIP() << "this machine has " << gpus_ << " card; needed: 2";
  }
  int gpus_ = 0;
};

void on_ranks(const std::vector<int>& hosts, const std::function<void(const Comm&)>& body,
              const CommOptions& options = {}) {
  ThreadWorld world(hosts);
  run_ranks(
      world,
      [&](Communicator& comm) { body(make_comm(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &comm))); },
      options);
}

at::Tensor term(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat).mul(0.37).add(rank).sin().mul(rank + 1);
}

/// Returns small integers, which all types hold exactly.
at::Tensor values(int64_t rank, int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul(7 + rank).remainder(23).sub(rank).to(type);
}

/// Compares the allreduce on `place` with the CPU's for every type, reduction and count.
void expect_as_on_the_cpu(const Comm& comm, at::Device place) {
  const int64_t rank = comm->communicator->rank(), size = comm->communicator->size();
  for (const auto type : kTypes)
    for (const auto reduction : kReductions)
      for (const int64_t count : {int64_t{0}, int64_t{1}, size - 1, size, size + 1, int64_t{1009}}) {
        at::Tensor plain = values(rank, count, type), on_gpu = plain.to(place);
        allreduce_(plain, comm, reduction);
        allreduce_(on_gpu, comm, reduction);
        EXPECT_EQ(on_gpu.device(), place);
        EXPECT_TRUE(at::isIntegralType(type, false) ? at::equal(on_gpu.cpu(), plain)
                                                    : at::allclose(on_gpu.cpu(), plain, 1e-2, 1e-3))
            << count << " of " << type << ", " << name_of(reduction);
      }
}

TEST_F(GpuTest, RanksThatShareAGpuStageAndGetTheBitsOfTheCpu) {
  for (const auto& hosts : {by_host({2}), by_host({3}), by_host({2, 2})})
    on_ranks(hosts, [](const Comm& comm) {
      expect_as_on_the_cpu(comm, gpu());
      EXPECT_TRUE(comm->gpus->decision().starts_with("staged on the host: ranks 0 and 1 share GPU "))
          << comm->gpus->decision();
      for (const auto reduction : kReductions) {
        at::Tensor plain = term(comm->communicator->rank(), 5'000'011), on_gpu = plain.to(gpu());
        allreduce_(plain, comm, reduction);
        allreduce_(on_gpu, comm, reduction);
        EXPECT_TRUE(at::equal(on_gpu.cpu(), plain));
      }
    });
}

TEST_F(GpuTest, WhatTheStreamHoldsIsReducedAndWhatFollowsSeesTheSums) {
  on_ranks(by_host({2}), [](const Comm& comm) {
    for (int i = 0; i < 20; ++i) {
      at::Tensor product = at::full({1024, 1024}, 1.f, at::TensorOptions(gpu()));
      for (int k = 0; k < 10; ++k) product = product.mm(product).div_(1024);
      std::vector<at::Tensor> tensors{product, at::full({3}, comm->communicator->rank(), product.options())};
      allreduce_(tensors, comm, Reduction::sum);
      EXPECT_TRUE(at::equal((tensors[0] + 1).cpu(), at::full({1024, 1024}, 3.f)));
      EXPECT_TRUE(at::equal((tensors[1] * 2).cpu(), at::full({3}, 2.f)));
    }
  });
}

TEST_F(GpuTest, StagedBroadcastsAndReductionsToHomesAreTheCpus) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    const int64_t rank = comm->communicator->rank();
    std::vector<at::Tensor> tensors{at::full({3}, rank), at::full({2'500'000}, rank, at::kFloat),
                                    at::full({2, 3}, rank == 2, at::kBool)};
    for (auto& tensor : tensors) tensor = tensor.to(gpu());
    broadcast_(tensors, comm, 2, {2, 0});
    for (auto& tensor : tensors)
      EXPECT_TRUE(tensor.eq(tensor.scalar_type() == at::kBool ? rank != 1 : rank == 1 ? 1 : 2).all().item<bool>());

    const std::vector<int64_t> ends{5, 5, 262'144, 2'300'001}, owners{1, 0, 2, 0};
    at::Tensor plain = term(rank, 2'500'000), on_gpu = plain.to(gpu());
    reduce_(plain, comm, ends, owners, Reduction::average);
    reduce_(on_gpu, comm, ends, owners, Reduction::average);
    EXPECT_TRUE(at::equal(on_gpu.cpu(), plain));
  });
}

/// Compares reduce_scatter_ and all_gather_ on a GPU with allreduce_ there. The tensor `own` is on that GPU.
void expect_halves_of_the_allreduce(const Comm& comm, const at::Tensor& own) {
  at::Tensor whole = own.clone(), halves = own.clone();
  allreduce_(whole, comm, Reduction::average);
  reduce_scatter_(halves, comm, Reduction::average);
  const auto [begin, end] = own_part(own.numel(), comm);
  at::Tensor expected = own.clone();
  expected.slice(0, begin, end).copy_(whole.slice(0, begin, end));
  EXPECT_TRUE(at::equal(halves, expected)) << own.numel() << " of " << own.scalar_type();
  all_gather_(halves, comm);
  EXPECT_TRUE(at::equal(halves, whole)) << own.numel() << " of " << own.scalar_type();
}

TEST_F(GpuTest, StagedHalvesAreThoseOfTheAllreduceAndTheCpus) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    for (const auto type : kTypes)
      for (const int64_t count : {0, 2, 7, 5'000'011})
        expect_halves_of_the_allreduce(comm, term(comm->communicator->rank(), count).mul(100).to(type).to(gpu()));
    at::Tensor plain = term(comm->communicator->rank(), 5'000'011), on_gpu = plain.to(gpu());
    reduce_scatter_(plain, comm, Reduction::sum);
    reduce_scatter_(on_gpu, comm, Reduction::sum);
    EXPECT_TRUE(at::equal(on_gpu.cpu(), plain));
  });
}

TEST_F(GpuTest, GradientsOfAGpuGetTheBitsOfTheOperator) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    const int64_t rank = comm->communicator->rank();
    std::vector<at::Tensor> parameters;
    for (const int64_t count : {7, 100'003, 5, 400'009})
      parameters.push_back(term(0, count).to(gpu()).requires_grad_());
    GradientAllreduce gradients(parameters, comm, {.bucket_bytes = 1 << 16});
    for (int step = 0; step < 4; ++step) {
      std::vector<at::Tensor> expected;
      at::Tensor loss = at::zeros({}, parameters[0].options());
      for (const at::Tensor& parameter : parameters) {
        parameter.mutable_grad().reset();
        const at::Tensor factor = term(rank + step, parameter.numel()).to(gpu());
        expected.push_back(factor.clone());
        loss = loss + (parameter * factor).sum();
      }
      gradients.begin();
      loss.backward();
      gradients.finish();
      allreduce_(expected, comm, Reduction::average);
      for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(parameters[i].grad(), expected[i])) << i;
    }
  });
}

TEST_F(GpuTest, ListsOfAGpuAndTheCpuAreRefusedByName) {
  const Comm comm = make_comm(self_communicator());
  const std::vector<at::Tensor> mixed{at::zeros({3}), at::zeros({3}, at::TensorOptions(gpu()))};
  EXPECT_THROW(allreduce_(mixed, comm, Reduction::sum), c10::Error);
  EXPECT_THROW(broadcast_(mixed, comm, 0, {0}), c10::Error);
}

TEST_F(GpuTest, NcclReducesForOneRank) {
  const Comm comm = make_comm(self_communicator());
  expect_as_on_the_cpu(comm, gpu());
  EXPECT_TRUE(comm->gpus->decision().starts_with("NCCL ")) << comm->gpus->decision();
  at::Tensor large = term(0, 5'000'011).to(gpu());
  const at::Tensor before = large.clone();
  allreduce_(large, comm, Reduction::average);
  broadcast_(large, comm, 0, {0});
  reduce_(large, comm, {7, 5'000'000}, {0, 0}, Reduction::sum);
  reduce_scatter_(large, comm, Reduction::sum);
  all_gather_(large, comm);
  EXPECT_TRUE(at::equal(large, before));
}

TEST_F(GpuTest, DeterministicAlgorithmsMeanStaging) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const Comm comm = make_comm(self_communicator());
  allreduce_(at::ones({3}, at::TensorOptions(gpu())), comm, Reduction::sum);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_NE(comm->gpus->decision().find("deterministic"), std::string::npos) << comm->gpus->decision();
}

TEST_F(SeveralGpusTest, NcclReducesAmongAllGpusByLevels) {
  std::vector<std::string> shapes{str(gpus_)};
  if (gpus_ % 2 == 0 && gpus_ > 2) shapes.push_back(str(gpus_ / 2, "x2"));
  if (gpus_ > 2) shapes.push_back(str(gpus_ - 1, "+1"));
  for (const auto& shape : shapes)
    on_ranks(std::vector<int>(static_cast<size_t>(gpus_)),
             [&](const Comm& comm) {
               const int rank = comm->communicator->rank(), size = comm->communicator->size();
               const c10::DeviceGuard guard(gpu(rank));
               expect_as_on_the_cpu(comm, gpu(rank));
               EXPECT_TRUE(comm->gpus->decision().starts_with("NCCL ")) << comm->gpus->decision();

               // Summed in 16 bits, every 1 would be lost beside 2048.
               at::Tensor half = at::full({1009}, rank == 0 ? 2048 : 1, at::TensorOptions(at::kHalf)).to(gpu(rank));
               allreduce_(half, comm, Reduction::sum);
               EXPECT_TRUE(at::equal(half.cpu(), at::full({1009}, 2047.f + static_cast<float>(size)).to(at::kHalf)));
               at::Tensor nan = at::full({3}, rank ? 1.f : std::numeric_limits<float>::quiet_NaN()).to(gpu(rank));
               allreduce_(nan, comm, Reduction::maximum);
               EXPECT_TRUE(nan.isnan().all().item<bool>());

               at::Tensor sum = term(rank, 5'000'011).to(gpu(rank)), rank0s = sum.clone();
               allreduce_(sum, comm, Reduction::average);
               rank0s.copy_(sum);
               std::vector<int64_t> everyone(static_cast<size_t>(size));
               for (int64_t i = 0; i < size; ++i) everyone[static_cast<size_t>(i)] = i;
               broadcast_(rank0s, comm, 0, everyone);
               EXPECT_TRUE(at::equal(sum, rank0s)) << "other bits than rank 0's";
               for (const auto type : kTypes)
                 for (const int64_t count : {size - 1, 1009, 5'000'011})
                   expect_halves_of_the_allreduce(comm, term(rank, count).mul(100).to(type).to(gpu(rank)));
               at::Tensor some = at::full({9}, rank, at::kLong).to(gpu(rank));
               broadcast_(some, comm, 1, {1, 0});
               EXPECT_EQ(some[0].item<int64_t>(), rank == 0 ? 1 : rank);
             },
             {.levels = Levels::parse(shape, gpus_).labels()});
}

TEST_F(SeveralGpusTest, ARankThatDoesNotComeEndsInACommErrorAndNoHang) {
  on_ranks(std::vector<int>{0, 0},
           [](const Comm& comm) {
             const int rank = comm->communicator->rank();
             const c10::DeviceGuard guard(gpu(rank));
             at::Tensor tensor = at::ones({1 << 20}).to(gpu(rank));
             allreduce_(tensor, comm, Reduction::sum);
             const Range all{0, 1 << 20};
             HierarchicalNccl& levels = *comm->gpus->levels(gpu(rank));
             if (rank == 1) return std::this_thread::sleep_for(std::chrono::seconds(8));
             // The call starts after the agreement, as if the other rank had died on its way to NCCL.
             EXPECT_THROW(levels.reduce_scatter(tensor.data_ptr(), all.size(), Element::float32, Reduction::sum),
                          CommError);
             EXPECT_NO_THROW((void)at::ones({3}, tensor.options()).cpu());
           },
           {.deadline = std::chrono::milliseconds(2000)});
}

// Runs wherever CUDA's and NCCL's libraries are, with or without a driver.
TEST(NcclTest, NamesItselfInvitesAndTellsItsErrorsInOneLine) {
  void* library = ::dlopen("libspillway_cuda.so", RTLD_NOW);
  if (!library) GTEST_SKIP() << ::dlerror();
  if (!SPILLWAY_NCCL_IS_THERE) GTEST_SKIP() << "there is no NCCL beside LibTorch";
  const auto open = reinterpret_cast<OpenDeviceNetwork>(::dlsym(library, kOpenDeviceNetwork));
  ASSERT_NE(open, nullptr) << "NCCL is there, and libspillway_cuda was built without it";
  GpuNetwork& nccl = *open();
  EXPECT_TRUE(nccl.name().starts_with("NCCL 2.")) << nccl.name();
  const NcclUniqueId invitation = nccl.make_unique_id();
  EXPECT_NE(invitation, NcclUniqueId{});
  try {
    (void)nccl.join(invitation, 1, 0, /*GPU=*/63);
    ADD_FAILURE() << "there is a cuda:63";
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("[nccl] ")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace spillway::ddl
