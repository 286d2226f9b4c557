"""Tests of K-FAC on layers whose weights operators get in another form: right gradients, or an error by name."""

import collections
import unittest
import warnings

import torch
import torch.nn.functional as F
from kfac_cases import EXACT
from torch import nn

import spillway


class Used(nn.Module):
    """A layer whose weight `how` uses, and one behind it."""

    def __init__(self, layer, how, behind=None):
        super().__init__()
        self.layer, self.how = layer, how
        self.behind = behind or nn.Identity()

    def forward(self, x):
        return self.behind(self.how(x, self.layer).tanh())


def linear(*sizes, bias=True):
    torch.manual_seed(1)
    return nn.Linear(*sizes, bias=bias)


def convolution(*args, **kwargs):
    torch.manual_seed(2)
    return nn.Conv2d(*args, **kwargs)


def given(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(3))


def natural(model, x, **options):
    """Returns the gradients of the parameters after a step of K-FAC, by name."""
    kfac = spillway.KFAC(model, 0.1, **(EXACT | options))
    model(x).square().mean().backward()
    kfac.step()
    return {name: p.grad for name, p in model.named_parameters()}


class KfacOddUsesTest(unittest.TestCase):
    def assert_same(self, one, other, name="layer.weight"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-6)

    def assert_refused(self, model, x, words, **options):
        kfac = spillway.KFAC(model, 0.1, **(EXACT | options))
        model(x).square().mean().backward()
        with self.assertRaisesRegex(RuntimeError, f"layer 'layer' has a gradient, but nothing of its inputs.*{words}"):
            kfac.step()

    def test_views_of_a_weight_that_keep_its_matrix_are_followed(self):
        plain = natural(Used(linear(8, 6), lambda x, a: a(x)), given(16, 8))
        views = {
            "a copy of a transpose": lambda x, a: torch.addmm(a.bias, x, a.weight.transpose(-2, -1)),
            "permuted": lambda x, a: x @ a.weight.permute(1, 0) + a.bias,
            "with a dimension in front": lambda x, a: (x[None] @ a.weight.mT[None])[0] + a.bias,
            "expanded": lambda x, a: torch.bmm(x.view(2, 8, 8), a.weight.t().expand(2, 8, 6)).view(16, 6) + a.bias,
            "viewed as itself": lambda x, a: F.linear(x, a.weight.view(6, 8), a.bias),
            "turned twice": lambda x, a: F.linear(x, a.weight.t().t(), a.bias),
            "as a 1x1 convolution": lambda x, a: F.conv2d(x[:, :, None, None], a.weight[..., None, None], a.bias)[
                ..., 0, 0
            ],
        }
        for name, how in views.items():
            with self.subTest(name):
                self.assert_same(natural(Used(linear(8, 6), how), given(16, 8)), plain)

    def test_views_of_a_weight_that_change_its_matrix_are_refused(self):
        for name, layer, how in (
            ("a 1x1 convolution as a product", convolution(8, 6, 1), lambda x, a: F.linear(x, a.weight.view(6, 8))),
            ("flattened", convolution(8, 6, 1), lambda x, a: F.linear(x, a.weight.flatten(1))),
            ("other sizes", linear(8, 6), lambda x, a: F.linear(x.view(32, 4), a.weight.view(12, 4))),
            ("the view of a transpose", linear(8, 6), lambda x, a: x @ a.weight.view(8, 6)),
            ("heads", linear(8, 6), lambda x, a: x.expand(3, 16, 8) @ a.weight.view(3, 2, 8).transpose(1, 2)),
        ):
            with self.subTest(name):
                self.assert_refused(Used(layer, how, behind=nn.Identity()), given(16, 8), "hides them")

    def test_a_square_weight_in_the_other_order_is_refused(self):
        self.assert_refused(Used(linear(8, 8), lambda x, a: x @ a.weight), given(16, 8), "Mm")

    def test_convolutions_with_a_turned_weight_are_refused(self):
        layer = {"bias": False, "kernel_size": 3, "in_channels": 4, "out_channels": 4}
        x = given(16, 4, 7, 7)
        plain = natural(Used(convolution(**layer), lambda x, a: F.conv2d(x, a.weight)), x)
        cast = natural(Used(convolution(**layer), lambda x, a: F.conv2d(x, a.weight.to(torch.float64).float())), x)
        self.assert_same(cast, plain)
        for turned in (lambda w: w.transpose(2, 3), lambda w: w.transpose(0, 1), lambda w: w.permute(1, 0, 2, 3)):
            self.assert_refused(Used(convolution(**layer), lambda x, a, t=turned: F.conv2d(x, t(a.weight))), x, "Conv")
        self.assert_refused(
            Used(convolution(4, 4, 3, groups=2, bias=False), lambda x, a: F.conv2d(x[:, :2], a.weight)),
            x,
            "other sizes",
        )

    def test_factors_of_addmm_are_refused(self):
        zeros = torch.zeros(6)
        for how in (
            lambda x, a: torch.addmm(zeros, x, a.weight.t(), alpha=10.0),
            lambda x, a: torch.addmm(a.bias, x, a.weight.t(), beta=2.0),
        ):
            self.assert_refused(Used(linear(8, 6), how), given(16, 8), "Addmm")
        ignored = natural(
            Used(linear(8, 6, bias=False), lambda x, a: torch.addmm(zeros, x, a.weight.t(), beta=0)), given(16, 8)
        )
        self.assert_same(ignored, natural(Used(linear(8, 6, bias=False), lambda x, a: a(x)), given(16, 8)))

    def test_a_bias_of_two_layers_is_left_to_the_optimizer(self):
        def two(tie):
            model = nn.Sequential(linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
            if tie:
                model[2].bias = model[0].bias
            else:  # the same numbers, of a parameter that K-FAC does not see
                model[2].bias.data.copy_(model[0].bias.data)
            return model

        model, x = two(tie=True), given(16, 8)
        model(x).square().mean().backward()
        raw = model[0].bias.grad.clone()
        model.zero_grad()
        tied = natural(model, x)
        self.assertTrue(torch.equal(tied["0.bias"], raw))
        own = natural(two(tie=False), x)
        for name in ("0.weight", "2.weight"):
            self.assertLess((tied[name].norm() / own[name].norm()).log().abs(), 0.7, name)

    def test_sparse_inputs_are_those_of_dense_ones(self):
        x = given(16, 8).relu()
        dense = natural(nn.Sequential(linear(8, 6), nn.Tanh(), nn.Linear(6, 4)), x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own about CSR
            for kind in (x.to_sparse(), x.to_sparse_csr()):
                sparse = natural(nn.Sequential(linear(8, 6), nn.Tanh(), nn.Linear(6, 4)), kind)
                for name in ("0.weight", "2.weight"):
                    self.assert_same(sparse, dense, name)

    def test_nested_inputs_are_refused_by_name(self):
        parts = [given(5, 8), given(11, 8)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own about nested tensors
            for layout, dense in (
                (torch.jagged, lambda y: y.values()),
                (torch.strided, lambda y: y.to_padded_tensor(0.0)),
            ):
                model = nn.Sequential(collections.OrderedDict(layer=linear(8, 6)))
                kfac = spillway.KFAC(model, 0.1, **EXACT)
                dense(model(torch.nested.nested_tensor(parts, layout=layout))).square().mean().backward()
                with self.assertRaisesRegex(RuntimeError, "layer 'layer' has a gradient.*leave the layer out"):
                    kfac.step()

    def test_autocast_around_a_step_changes_no_bit(self):
        def gradients(covered):
            torch.manual_seed(4)
            model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
            kfac = spillway.KFAC(model, 0.1, factor_interval=1, inverse_interval=1)
            model(given(32, 64)).square().mean().backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=covered):
                kfac.step()
            return [p.grad for p in model.parameters()]

        for one, other in zip(gradients(True), gradients(False), strict=True):
            self.assertTrue(torch.equal(one, other))

    def test_a_kfac_in_inference_mode_is_refused(self):
        with torch.inference_mode(), self.assertRaisesRegex(RuntimeError, "inference_mode"):
            spillway.KFAC(linear(8, 6), 0.1)


if __name__ == "__main__":
    unittest.main()
