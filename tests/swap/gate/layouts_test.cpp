// Tests of tensors that are not a plain block of their own: views, sparse, nested, quantized, complex, other memory
// formats.
#include <ATen/NestedTensorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include "core/error.h"
#include "tests/support/unchanged.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;
using testing::expect_unchanged;
using testing::Tensors;

TEST(LayoutsTest, ViewsOfViews) {
  expect_unchanged([] {
    auto b = at::randn({100, 100});
    auto v = b.slice(0, 10, 20).t();
    auto w = v.unsqueeze(0).expand({3, 100, 10}).select(0, 1);
    b.mul_(2);  // through the base
    v.add_(1);  // through a view
    auto split = b.chunk(4, 1);
    split[2].zero_();
    return Tensors{b, v + 1, w.clone(), b.view(-1).slice(0, 0, 10'000, 3).contiguous(), at::_unsafe_view(b, {10'000})};
  });
}

TEST(LayoutsTest, ExpandedTensorsAsArguments) {
  expect_unchanged([] {
    auto row = at::randn({1, 100});
    auto e = row.expand({50, 100});
    auto y = e * 2 + at::randn({50, 1}).expand_as(e);
    return Tensors{y, e.contiguous(), e.sum(0)};
  });
}

TEST(LayoutsTest, OverlappingStrides) {
  expect_unchanged([] {
    auto b = at::randn({1000});
    auto windows = b.as_strided({100, 50}, {7, 3}, 5);
    auto sums = windows.sum(1);
    b.add_(1);
    auto unfolded = b.unfold(0, 20, 5);
    return Tensors{sums, windows.contiguous(), unfolded * unfolded};
  });
}

TEST(LayoutsTest, OneStorageThroughSeveralTensors) {
  expect_unchanged([] {
    auto a = at::randn({500});
    auto c = at::empty({0}).set_(a.storage(), 0, {500}, {1});
    auto busy = a + 1;
    c.add_(1);
    auto bytes = a.view(at::kByte).clone();
    return Tensors{a, c, busy, bytes};
  });
}

TEST(LayoutsTest, SparseCoo) {
  expect_unchanged([] {
    auto i = at::randint(0, 100, {2, 500}, at::kLong);
    auto s = at::sparse_coo_tensor(i, at::randn({500}), {100, 100});
    auto z = at::randn({100, 100});
    auto coalesced = s.coalesce();
    auto product = at::_sparse_mm(s, z);
    auto sum = (coalesced + coalesced).coalesce();
    auto row = coalesced.select(0, 7).to_dense();  // a view that reads the indices
    auto turned = coalesced.transpose(0, 1).to_dense();
    return Tensors{product,        row,         turned, coalesced.values().clone(), coalesced.indices().clone(),
                   sum.to_dense(), s.to_dense()};
  });
}

TEST(LayoutsTest, SparseCsr) {
  expect_unchanged([] {
    auto csr = at::relu(at::randn({60, 60})).to_sparse_csr();
    auto busy = at::ones({60, 60});
    return Tensors{csr.matmul(busy), csr.select(0, 3).to_dense(), csr.values() * 2, csr.crow_indices().clone(),
                   csr.to_dense()};
  });
}

TEST(LayoutsTest, SparseCompressed) {
  for (const at::Layout layout : {at::kSparseCsr, at::kSparseCsc, at::kSparseBsr, at::kSparseBsc}) {
    SCOPED_TRACE(spillway::str(layout));
    expect_unchanged([layout] {
      const auto dense = at::relu(at::randn({60, 60}));
      const bool blocked = layout == at::kSparseBsr || layout == at::kSparseBsc;
      auto sparse = dense.to_sparse(layout, blocked ? at::OptionalIntArrayRef({2, 3}) : at::OptionalIntArrayRef());
      auto before = sparse.values() * 2;
      sparse.neg_();  // writes the values
      auto busy = at::ones({60, 60}) + 1;
      auto zeros = at::zeros_like(sparse);  // copies the indices
      auto like = at::empty_like(sparse);
      at::zero_(like);
      return Tensors{before, busy, sparse.to_dense(), zeros.to_dense(), like.to_dense()};
    });
  }
}

TEST(LayoutsTest, BackwardThroughASparseMatrixTransposesIt) {
  expect_unchanged([] {
    auto csr = at::relu(at::randn({60, 60})).to_sparse_csr();
    auto x = at::randn({60, 20}).requires_grad_();
    csr.matmul(x).square().sum().backward();
    return Tensors{x.grad()};
  });
}

TEST(LayoutsTest, SparseGradients) {
  expect_unchanged([] {
    nn::Embedding table(nn::EmbeddingOptions(500, 16).sparse(true));
    torch::optim::SGD sgd(table->parameters(), 0.1);
    auto x = at::randint(0, 500, {32, 4}, at::kLong);
    for (int i = 0; i < 3; ++i) {
      sgd.zero_grad();
      table(x).square().sum().backward();
      table(x).sum().backward();  // accumulates into the sparse one
      sgd.step();
    }
    return Tensors{table->weight.detach().clone(), table->weight.grad().coalesce().values().clone()};
  });
}

TEST(LayoutsTest, QuantizedPerTensorAndPerChannel) {
  expect_unchanged([] {
    auto x = at::randn({50, 40});
    auto per_tensor = at::quantize_per_tensor(x, 0.1, 3, at::kQInt8);
    auto q = at::quantize_per_channel(x, at::rand({50}) + 0.1, at::zeros({50}, at::kLong), 0, at::kQInt8);
    auto with_float_zeros = at::quantize_per_channel(x, at::rand({50}) + 0.1, at::zeros({50}), 0, at::kQInt8);
    auto busy = x + 1;
    auto copy = q.clone();
    return Tensors{
        q.dequantize(), copy.dequantize(), per_tensor.dequantize(), q.int_repr(), with_float_zeros.dequantize(), busy};
  });
}

TEST(LayoutsTest, NestedStrided) {
  expect_unchanged([] {
    auto n = at::_nested_tensor_from_tensor_list({at::randn({50, 16}), at::randn({30, 16})});
    auto weight = at::randn({16, 16});
    auto busy = weight + 1;
    auto y = at::relu(at::linear(n * 2, weight));
    auto turned = n.transpose(1, 2).contiguous();
    auto parts = n.unbind();
    return Tensors{at::nested_to_padded_tensor(y, 0.0), at::nested_to_padded_tensor(turned, 0.0), parts[1] * 2, busy};
  });
}

TEST(LayoutsTest, JaggedValuesAndOffsets) {
  expect_unchanged([] {
    auto values = at::randn({80, 16}).requires_grad_();
    auto offsets = at::tensor({0, 30, 30, 80}, at::kLong);
    auto padded = at::_jagged_to_padded_dense_forward(values, {offsets}, {50}, 0.0);
    auto back = at::_padded_dense_to_jagged_forward(padded * 2, {offsets}, 80);
    auto sums = at::segment_reduce(values, "sum", at::tensor({30, 0, 50}, at::kLong));
    sums.square().sum().backward();
    return Tensors{padded.detach(), back.detach(), sums.detach(), values.grad()};
  });
}

TEST(LayoutsTest, ComplexNumbersAndLazyConjugation) {
  expect_unchanged([] {
    auto a = at::randn({32, 32}, at::kComplexFloat);
    auto lazy = a.conj();
    auto negative = at::imag(lazy);  // a lazy negation
    auto b = lazy.matmul(a);
    a.mul_(c10::complex<float>(0, 2));
    return Tensors{at::view_as_real(b).clone(), at::real(a) * 2, at::view_as_real(at::fft_fft2(a)).clone(),
                   negative.clone(), at::view_as_real(lazy.resolve_conj()).clone()};
  });
}

TEST(LayoutsTest, ChannelsLastConvolutions) {
  expect_unchanged([] {
    nn::Conv2d flat(nn::Conv2dOptions(4, 8, 3).padding(1));
    nn::Conv3d deep(nn::Conv3dOptions(4, 8, 3).padding(1));
    auto x = at::randn({2, 4, 12, 12}).contiguous(at::MemoryFormat::ChannelsLast);
    auto z = at::randn({2, 4, 6, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast3d);
    auto y = at::relu(flat(x));
    auto w = at::max_pool3d(deep(z), 2);
    (y.square().mean() + w.square().mean()).backward();
    return Tensors{y.detach(), w.detach(), flat->weight.grad(), deep->weight.grad()};
  });
}

TEST(LayoutsTest, EmptyAndZeroDimensionalTensors) {
  expect_unchanged([] {
    auto nothing = at::empty({0, 5});
    auto one = at::randn({});
    auto many = at::randn({1000});
    auto y = at::cat({nothing.view({-1}), many * one});
    return Tensors{y, one, nothing.sum(), at::empty({3, 0}).matmul(at::empty({0, 4})), many[7].clone()};
  });
}

}  // namespace
}  // namespace spillway
