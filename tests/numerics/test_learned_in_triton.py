"""The Triton kernels of learned bits, run by Triton's interpreter on a CPU."""

import importlib.util
import itertools
import logging
import math
import os
import subprocess
import sys

import pytest
import torch

from chop.numerics.fast import learned, learned_cuda
from chop.numerics.fast.learned_reference import reference_gradients, rounded_fixed
from chop.numerics.fast.rules import LearnedRule
from chop.numerics.learned import _LearnedFixed, enough_bits

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SHAPES = [
    *(((4, 3, 5, 7), (3, 1, 1)), ((4, 3, 5, 7), (3, 5, 7)), ((4, 3, 5, 7), ())),
    *(((16, 9), (16, 9)), ((16, 9), (16, 1)), ((16, 9), (9,))),
]
ODD = [math.inf, -math.inf, math.nan, 0.5, -0.5, 2.5]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton"
)


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="this is the process that is started")
def test_the_interpreter_runs_the_tests_of_this_file():
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-m", "slow or not slow", __file__]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(not INTERPRETED, reason="Triton needs a GPU, or TRITON_INTERPRET=1")
@pytest.mark.parametrize("rounding", ["even", "up", "floor"])
@pytest.mark.parametrize("overflow", ["saturate", "symmetric", "wrap"])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_values_and_gradients_are_those_of_the_reference(rounding, overflow, signed):
    torch.manual_seed(0)
    for (shape, of_bits), limited in itertools.product(SHAPES, (True, False)):
        rule = LearnedRule(signed, rounding, overflow, unlimited=not limited)
        x, f = torch.randn(shape) * 4, torch.randn(of_bits) * 2 + 2
        i = torch.randn(of_bits) * 2 + 1 if limited else enough_bits(f)
        places = learned.places_of(shape, of_bits)
        odd = torch.cat([torch.tensor(ODD), x.flatten()[len(ODD) :]]).view(shape)
        got = learned_cuda.rounded(odd, i, f, places, rule)
        assert torch.equal(got.nan_to_num(9), rounded_fixed(odd, i, f, *rule.words).nan_to_num(9))
        tensors, grad = [t.clone().requires_grad_() for t in (x, i, f)], torch.randn(shape)
        _LearnedFixed.apply(*tensors, rule).backward(grad)
        for_x, *for_bits = learned_cuda.gradients(x, grad, i, f, places, rule)
        assert torch.equal(for_x, tensors[0].grad)
        for got, wanted in zip(for_bits, tensors[1:], strict=True):
            # sums of many terms are in another order
            assert torch.allclose(got, wanted.grad, rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(not INTERPRETED, reason="Triton needs a GPU, or TRITON_INTERPRET=1")
def test_networks_are_rounded_in_one_launch_each_with_its_bits():
    rule = LearnedRule(signed=True, rounding="even", overflow="saturate")
    x, grad, i, f = (torch.randn(3, 8, 4), torch.randn(3, 8, 4), *torch.randn(2, 3, 4) + 2)
    together = learned_cuda.rounded(x, i, f, (8, 4, 1), rule)
    assert torch.equal(together, rounded_fixed(x, i[:, None], f[:, None], *rule.words))
    found = learned_cuda.gradients(x, grad, i, f, (8, 4, 1), rule)
    for k in range(3):
        alone = learned_cuda.gradients(x[k], grad[k], i[k], f[k], (8, 4, 1), rule)
        assert all(map(torch.equal, (part[k] for part in found), alone))


RULES = [
    LearnedRule(signed, rounding, overflow, unlimited)
    for signed, rounding, overflow, unlimited in itertools.product(
        (True, False), ("even", "up", "floor"), ("saturate", "symmetric", "wrap"), (False, True)
    )
]
CPU = torch.device("cpu")


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(not INTERPRETED, reason="Triton needs a GPU, or TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_the_kernels_agree_with_the_reference_for_every_rule():
    for rule in RULES:
        assert learned_cuda.works.__wrapped__(CPU, rule), rule


def test_without_a_device_that_runs_them_torch_rounds():
    assert not learned_cuda.works(torch.device("meta"), RULES[0])


def reference(monkeypatch, values=lambda y: y, gradients=lambda g: g):
    """Let the reference, changed by two functions, take the place of the kernels."""

    def found(x, grad, i, f, places, rule):
        each = reference_gradients(x, i, f, rounded_fixed(x, i, f, *rule.words), grad, rule)
        return each[0], gradients(each[1].sum_to_size(i.shape)), each[2].sum_to_size(f.shape)

    monkeypatch.setattr(
        learned_cuda,
        "rounded",
        lambda x, i, f, places, rule: values(rounded_fixed(x, i, f, *rule.words)),
    )
    monkeypatch.setattr(learned_cuda, "gradients", found)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_kernels_with_the_values_and_gradients_of_the_reference_are_used(monkeypatch, rule):
    reference(monkeypatch)
    assert learned_cuda.works.__wrapped__(CPU, rule)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"values": lambda y: y + 2.0**-9 * (y == y.amax())}, "values"),
        ({"gradients": lambda g: 1.01 * g}, "gradients"),
    ],
)
def test_kernels_that_differ_are_left_alone_with_one_warning(monkeypatch, caplog, wrong, what):
    reference(monkeypatch, **wrong)
    learned_cuda.works.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not any(learned_cuda.works(CPU, RULES[0]) for _ in range(3))
    learned_cuda.works.cache_clear()
    (record,) = caplog.records
    assert f"of learned bits give other {what} than torch on cpu" in record.message
