"""PyTorch's own samples of its operators, forward and backward, with every tensor sent away after every operator.

    operators_test.py [--most N] [operator…]      N samples of an operator at most; without names all operators

Prints the operators whose results differ, and fails where one is not listed below.
"""

import argparse
import sys
import time
import warnings

import torch
from evicting_session import EvictingSession
from torch.utils import _pytree

try:
    from torch.testing._internal.common_methods_invocations import op_db
except ModuleNotFoundError as error:
    print(f"skipped: {error.name} is not installed, which torch's samples need")
    sys.exit(77)

#: Operators that are not compared, with the reason.
LEFT_OUT = {
    "empty": "memory without a value",
    "empty_like": "memory without a value",
    "empty_permuted": "memory without a value",
    "empty_strided": "memory without a value",
    "new_empty": "memory without a value",
    "new_empty_strided": "memory without a value",
    "resize_": "the new elements have no value",
    "resize_as_": "the new elements have no value",
}

#: Operators whose results differ, with the reason.
DIFFER = {
    "linalg.lstsq": "LAPACK's gelsy gives other bits at other addresses, without a Session too",
    "linalg.lstsq.grad_oriented": "the same",
}


def copied(value):
    """Returns copies of the tensors in a value, as leaves where they require gradients."""

    def copy(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return _pytree.tree_map(copy, value)


def tensors_of(value):
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def run(op, sample):
    """Returns the results of a sample and the gradients of its inputs; the error's type where it has none."""
    given = copied((sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    try:
        results = tensors_of(op(given[0], *given[1], **given[2]))
        wanted = [tensor for tensor in tensors_of(given) if tensor.requires_grad]
        roots = [r for r in results if r.requires_grad and (r.is_floating_point() or r.is_complex())]
        gradients = ()
        if roots and wanted and op.supports_autograd:
            gradients = torch.autograd.grad(roots, wanted, [torch.ones_like(root) for root in roots], allow_unused=True)
        return [r.detach() for r in results] + [g.detach() for g in gradients if g is not None]
    except Exception as error:  # some samples are meant to fail
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def same(one, another):
    if isinstance(one, str) or isinstance(another, str):
        return one == another
    return len(one) == len(another) and all(same_tensor(a, b) for a, b in zip(one, another, strict=True))


def same_tensor(a, b):
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return (
        torch.equal(
            torch.view_as_real(a.resolve_conj()).nan_to_num(7), torch.view_as_real(b.resolve_conj()).nan_to_num(7)
        )
        if a.is_complex()
        else bool(((a == b) | ((a != a) & (b != b))).all())
    )


def samples_of(op, most):
    made = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
    return [sample for sample, _ in zip(made, range(most), strict=False)]


def check(op, most):
    """Returns the first difference of an operator's samples as a text (None: there is none), and the page-outs."""
    samples = samples_of(op, most)
    plain = [run(op, sample) for sample in samples]
    session = EvictingSession()
    try:
        evicted = [run(op, sample) for sample in samples]
        outs = session.page_outs()
    finally:
        session.close()
    for number, (one, another) in enumerate(zip(plain, evicted, strict=True)):
        if not same(one, another):
            return f"sample {number}: {describe(one)} became {describe(another)}", outs
    return None, outs


def describe(results):
    if isinstance(results, str):
        return results[:300]
    return ", ".join(f"{str(r.dtype)[6:]}{list(r.shape)}" for r in results)


def name_of(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=10, help="samples of an operator")
    parser.add_argument("operators", nargs="*")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began, paged, looked_at, wrong = time.monotonic(), 0, 0, []
    for op in op_db:
        name = name_of(op)
        if (args.operators and name not in args.operators) or op.name in LEFT_OUT:
            continue
        if not op.supports_dtype(torch.float32, "cpu"):
            continue
        difference, outs = check(op, args.most)
        looked_at += 1
        paged += outs
        if difference:
            print(f"{'listed' if name in DIFFER else 'DIFFERS'}: {name}: {difference}", flush=True)
            if name not in DIFFER:
                wrong.append(name)
    print(f"{looked_at} operators, {paged} page-outs, {len(wrong)} differ, {time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong or looked_at == 0 or paged == 0 else 0)


if __name__ == "__main__":
    main()
