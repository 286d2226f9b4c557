// Collectives of tensors on CUDA cards. Skipped, and counted, where there is none, or one where several are needed.
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
#include "ddl/comm/single_rank.h"
#include "ddl/comm/thread_world.h"
#include "ddl/torch/gpu_operators.h"
#include "ddl/torch/gradient_allreduce.h"
#include "ddl/torch/operators.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;

constexpr std::array kTypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong};
constexpr std::array kReductions{Reduction::sum, Reduction::average, Reduction::maximum, Reduction::minimum};

at::Device card(int index = 0) {
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

class CardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      (void)open_device("cuda");
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

class SeveralCardsTest : public CardTest {
 protected:
  void SetUp() override {
    CardTest::SetUp();
    if (IsSkipped()) return;
    cards = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
    if (cards < 2) GTEST_SKIP() << "this machine has " << cards << " card; needed: 2";
  }
  int cards = 0;
};

void on_ranks(const std::vector<int>& hosts, const std::function<void(const Comm&)>& body, CommOptions options = {}) {
  ThreadWorld world(hosts);
  run_ranks(
      world,
      [&](Communicator& comm) { body(make_comm(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &comm))); },
      std::move(options));
}

at::Tensor term(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat).mul(0.37).add(rank).sin().mul(rank + 1);
}

/// Small integers, which all types hold.
at::Tensor values(int64_t rank, int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul(7 + rank).remainder(23).sub(rank).to(type);
}

/// On `place`, of every type, reduction and count, against the CPU's.
void expect_as_on_the_cpu(const Comm& comm, at::Device place) {
  const int64_t rank = comm->communicator->rank(), size = comm->communicator->size();
  for (const auto type : kTypes)
    for (const auto reduction : kReductions)
      for (const int64_t count : {int64_t{0}, int64_t{1}, size - 1, size, size + 1, int64_t{1009}}) {
        at::Tensor plain = values(rank, count, type), on_card = plain.to(place);
        allreduce_(plain, comm, reduction);
        allreduce_(on_card, comm, reduction);
        EXPECT_EQ(on_card.device(), place);
        EXPECT_TRUE(at::isIntegralType(type, false) ? at::equal(on_card.cpu(), plain)
                                                    : at::allclose(on_card.cpu(), plain, 1e-2, 1e-3))
            << count << " of " << type << ", " << name_of(reduction);
      }
}

TEST_F(CardTest, RanksThatShareACardStageAndGetTheBitsOfTheCpu) {
  for (const auto& hosts : {by_host({2}), by_host({3}), by_host({2, 2})})
    on_ranks(hosts, [](const Comm& comm) {
      expect_as_on_the_cpu(comm, card());
      EXPECT_TRUE(comm->cards->decision().starts_with("staged on the host: ranks 0 and 1 share card "))
          << comm->cards->decision();
      for (const auto reduction : kReductions) {
        at::Tensor plain = term(comm->communicator->rank(), 5'000'011), on_card = plain.to(card());
        allreduce_(plain, comm, reduction);
        allreduce_(on_card, comm, reduction);
        EXPECT_TRUE(at::equal(on_card.cpu(), plain));
      }
    });
}

TEST_F(CardTest, WhatTheStreamHoldsIsReducedAndWhatFollowsSeesTheSums) {
  on_ranks(by_host({2}), [](const Comm& comm) {
    for (int i = 0; i < 20; ++i) {
      at::Tensor product = at::full({1024, 1024}, 1.f, at::TensorOptions(card()));
      for (int k = 0; k < 10; ++k) product = product.mm(product).div_(1024);
      std::vector<at::Tensor> tensors{product, at::full({3}, comm->communicator->rank(), product.options())};
      allreduce_(tensors, comm, Reduction::sum);
      EXPECT_TRUE(at::equal((tensors[0] + 1).cpu(), at::full({1024, 1024}, 3.f)));
      EXPECT_TRUE(at::equal((tensors[1] * 2).cpu(), at::full({3}, 2.f)));
    }
  });
}

TEST_F(CardTest, StagedBroadcastsAndReductionsToHomesAreTheCpus) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    const int64_t rank = comm->communicator->rank();
    std::vector<at::Tensor> tensors{at::full({3}, rank), at::full({2'500'000}, rank, at::kFloat),
                                    at::full({2, 3}, rank == 2, at::kBool)};
    for (auto& tensor : tensors) tensor = tensor.to(card());
    broadcast_(tensors, comm, 2, {2, 0});
    for (auto& tensor : tensors)
      EXPECT_TRUE(tensor.eq(tensor.scalar_type() == at::kBool ? rank != 1 : rank == 1 ? 1 : 2).all().item<bool>());

    const std::vector<int64_t> ends{5, 5, 262'144, 2'300'001}, homes{1, 0, 2, 0};
    at::Tensor plain = term(rank, 2'500'000), on_card = plain.to(card());
    reduce_(plain, comm, ends, homes, Reduction::average);
    reduce_(on_card, comm, ends, homes, Reduction::average);
    EXPECT_TRUE(at::equal(on_card.cpu(), plain));
  });
}

/// On a card, against allreduce_ there; `own` is on it.
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

TEST_F(CardTest, StagedHalvesAreThoseOfTheAllreduceAndTheCpus) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    for (const auto type : kTypes)
      for (const int64_t count : {0, 2, 7, 5'000'011})
        expect_halves_of_the_allreduce(comm, term(comm->communicator->rank(), count).mul(100).to(type).to(card()));
    at::Tensor plain = term(comm->communicator->rank(), 5'000'011), on_card = plain.to(card());
    reduce_scatter_(plain, comm, Reduction::sum);
    reduce_scatter_(on_card, comm, Reduction::sum);
    EXPECT_TRUE(at::equal(on_card.cpu(), plain));
  });
}

TEST_F(CardTest, GradientsOfACardGetTheBitsOfTheOperator) {
  on_ranks(by_host({2, 1}), [](const Comm& comm) {
    const int64_t rank = comm->communicator->rank();
    std::vector<at::Tensor> parameters;
    for (const int64_t count : {7, 100'003, 5, 400'009})
      parameters.push_back(term(0, count).to(card()).requires_grad_());
    GradientAllreduce gradients(parameters, comm, {.bucket_bytes = 1 << 16});
    for (int step = 0; step < 4; ++step) {
      std::vector<at::Tensor> expected;
      at::Tensor loss = at::zeros({}, parameters[0].options());
      for (const at::Tensor& parameter : parameters) {
        parameter.mutable_grad().reset();
        const at::Tensor factor = term(rank + step, parameter.numel()).to(card());
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

TEST_F(CardTest, ListsOfACardAndTheCpuAreRefusedByName) {
  const Comm comm = make_comm(self_communicator());
  const std::vector<at::Tensor> mixed{at::zeros({3}), at::zeros({3}, at::TensorOptions(card()))};
  EXPECT_THROW(allreduce_(mixed, comm, Reduction::sum), c10::Error);
  EXPECT_THROW(broadcast_(mixed, comm, 0, {0}), c10::Error);
}

TEST_F(CardTest, NcclReducesForOneRank) {
  const Comm comm = make_comm(self_communicator());
  expect_as_on_the_cpu(comm, card());
  EXPECT_TRUE(comm->cards->decision().starts_with("NCCL ")) << comm->cards->decision();
  at::Tensor large = term(0, 5'000'011).to(card());
  const at::Tensor before = large.clone();
  allreduce_(large, comm, Reduction::average);
  broadcast_(large, comm, 0, {0});
  reduce_(large, comm, {7, 5'000'000}, {0, 0}, Reduction::sum);
  reduce_scatter_(large, comm, Reduction::sum);
  all_gather_(large, comm);
  EXPECT_TRUE(at::equal(large, before));
}

TEST_F(CardTest, DeterministicAlgorithmsMeanStaging) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const Comm comm = make_comm(self_communicator());
  allreduce_(at::ones({3}, at::TensorOptions(card())), comm, Reduction::sum);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_NE(comm->cards->decision().find("deterministic"), std::string::npos) << comm->cards->decision();
}

TEST_F(SeveralCardsTest, NcclReducesAmongAllCardsByLevels) {
  std::vector<std::string> shapes{str(cards)};
  if (cards % 2 == 0 && cards > 2) shapes.push_back(str(cards / 2, "x2"));
  if (cards > 2) shapes.push_back(str(cards - 1, "+1"));
  for (const auto& shape : shapes)
    on_ranks(std::vector<int>(static_cast<size_t>(cards)),
             [&](const Comm& comm) {
               const int rank = comm->communicator->rank(), size = comm->communicator->size();
               const c10::DeviceGuard guard(card(rank));
               expect_as_on_the_cpu(comm, card(rank));
               EXPECT_TRUE(comm->cards->decision().starts_with("NCCL ")) << comm->cards->decision();

               // In 16 bits every 1 would be lost beside 2048.
               at::Tensor half = at::full({1009}, rank == 0 ? 2048 : 1, at::TensorOptions(at::kHalf)).to(card(rank));
               allreduce_(half, comm, Reduction::sum);
               EXPECT_TRUE(at::equal(half.cpu(), at::full({1009}, 2047.f + static_cast<float>(size)).to(at::kHalf)));
               at::Tensor nan = at::full({3}, rank ? 1.f : std::numeric_limits<float>::quiet_NaN()).to(card(rank));
               allreduce_(nan, comm, Reduction::maximum);
               EXPECT_TRUE(nan.isnan().all().item<bool>());

               at::Tensor sum = term(rank, 5'000'011).to(card(rank)), rank0s = sum.clone();
               allreduce_(sum, comm, Reduction::average);
               rank0s.copy_(sum);
               std::vector<int64_t> everyone(static_cast<size_t>(size));
               for (int64_t i = 0; i < size; ++i) everyone[static_cast<size_t>(i)] = i;
               broadcast_(rank0s, comm, 0, everyone);
               EXPECT_TRUE(at::equal(sum, rank0s)) << "other bits than rank 0's";
               for (const auto type : kTypes)
                 for (const int64_t count : {size - 1, 1009, 5'000'011})
                   expect_halves_of_the_allreduce(comm, term(rank, count).mul(100).to(type).to(card(rank)));
               at::Tensor some = at::full({9}, rank, at::kLong).to(card(rank));
               broadcast_(some, comm, 1, {1, 0});
               EXPECT_EQ(some[0].item<int64_t>(), rank == 0 ? 1 : rank);
             },
             {.levels = Levels::parse(shape, cards).labels()});
}

TEST_F(SeveralCardsTest, ARankThatDoesNotComeEndsInACommErrorAndNoHang) {
  on_ranks(std::vector<int>{0, 0},
           [](const Comm& comm) {
             const int rank = comm->communicator->rank();
             const c10::DeviceGuard guard(card(rank));
             at::Tensor tensor = at::ones({1 << 20}).to(card(rank));
             allreduce_(tensor, comm, Reduction::sum);
             const Range all{0, 1 << 20};
             DeviceLevels& levels = *comm->cards->levels(card(rank));
             if (rank == 1) return std::this_thread::sleep_for(std::chrono::seconds(8));
             // Past the agreement, as if the other had died on its way to NCCL.
             EXPECT_THROW(levels.reduce_scatter(tensor.data_ptr(), all.size(), Element::float32, Reduction::sum),
                          CommError);
             EXPECT_NO_THROW((void)at::ones({3}, tensor.options()).cpu());
           },
           {.deadline = std::chrono::milliseconds(2000)});
}

// Wherever CUDA's and NCCL's libraries are, driver or not.
TEST(NcclTest, NamesItselfInvitesAndTellsItsErrorsInOneLine) {
  void* library = ::dlopen("libspillway_cuda.so", RTLD_NOW);
  if (!library) GTEST_SKIP() << ::dlerror();
  if (!SPILLWAY_NCCL_IS_THERE) GTEST_SKIP() << "there is no NCCL beside LibTorch";
  const auto open = reinterpret_cast<OpenDeviceNetwork>(::dlsym(library, kOpenDeviceNetwork));
  ASSERT_NE(open, nullptr) << "NCCL is there, and libspillway_cuda was built without it";
  DeviceNetwork& nccl = *open();
  EXPECT_TRUE(nccl.name().starts_with("NCCL 2.")) << nccl.name();
  const Invitation invitation = nccl.invite();
  EXPECT_NE(invitation, Invitation{});
  try {
    (void)nccl.join(invitation, 1, 0, /*card=*/63);
    ADD_FAILURE() << "there is a cuda:63";
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("[nccl] ")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace spillway::ddl
