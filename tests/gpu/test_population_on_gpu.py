"""A population on a GPU, its step captured, learns as it does on the CPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset import TensorSplit
from chop.methods.population import train_population
from chop.methods.population.fused import batch_norm
from chop.methods.population.population import Population
from chop.methods.population.rounding import MAPS, PARAMETER, ROWS, Rounder
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS, variant
from chop.training.options import TrainOptions
from chop.training.steps import WARM_UP

pytestmark = pytest.mark.gpu
CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5}
CONFIG |= {"weight_width": 8, "weight_frac_width": 5, "bias_width": 8, "bias_frac_width": 5}


def rows(size, seed, shape=(16,)):
    x = torch.randn(size, *shape, generator=torch.Generator().manual_seed(seed))
    weight = torch.randn(x[0].numel(), 5, generator=torch.Generator().manual_seed(99))
    return TensorSplit(x, (x.flatten(1) @ weight).argmax(1))


def network(width, config=None):
    torch.manual_seed(width)
    linear = nn.Linear(16, width, bias=False)
    if config is not None:
        linear = variant(LAYERS[nn.Linear], FORMATS["integer"]).from_float(linear, config)
    return nn.Sequential(linear, nn.BatchNorm1d(width), nn.Sigmoid(), nn.Linear(width, 5))


def picture(width):
    torch.manual_seed(width)
    conv, linear = nn.Conv2d(2, width, 3, padding=1), nn.Linear(9 * width, 5)
    return nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), linear)


def options(**changes):
    usual = {"max_epochs": 3, "learning_rate": 1e-2, "precision": "64"}
    return TrainOptions(**(usual | changes))


def difference(a, b):
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs)


@pytest.mark.parametrize("kind", ["rows", "images"])
def test_the_gpu_learns_what_the_cpu_learns(kind):
    shape = (16,) if kind == "rows" else (2, 6, 6)
    data = rows(1000, 1, shape), rows(300, 2, shape)
    models = [picture(w) for w in (2, 5, 3)]
    if kind == "rows":
        models = [network(3), network(8, CONFIG), network(5)]
    chosen = [options(seed=1), options(optimizer="sgd"), options(max_steps=20, warmup_steps=5)]
    others = copy.deepcopy(models)
    here = train_population(models, data, chosen, batch_size=64, device="cuda")
    there = train_population(others, data, chosen, batch_size=64, device="cpu")
    for one, other, a, b in zip(models, others, here, there, strict=True):
        assert next(one.parameters()).device.type == "cpu"  # models stay where they were
        assert difference(one, other) < 1e-8  # the rounding of sums, in float64
        assert (a.steps, a.epochs) == (b.steps, b.epochs)
        assert a.loss == pytest.approx(b.loss, abs=1e-8)


def test_steps_are_replayed():
    models, device = [network(width).double() for width in (3, 8)], torch.device("cuda:0")
    chosen = [options(), options()]
    data = (rows(1000, 1), None)
    run = Population(models, data, chosen, [0, 1], batch_size=64, device=device)
    run.advance()
    assert run._captured.warm == WARM_UP
    assert run._captured.graph is not None


def test_it_resumes_on_the_gpu(tmp_path):
    def run(**others):
        models = [network(width) for width in (3, 8)]
        data = rows(1000, 1), rows(300, 2)
        train_population(models, data, options(), batch_size=64, device="cuda", **others)
        return models

    class Killed(Exception):
        pass

    def killer(reports):
        if reports[0].epochs == 2:
            raise Killed

    file = tmp_path / "population.pt"
    with pytest.raises(Killed):
        run(on_epoch=killer, snapshot=file)
    for one, other in zip(run(snapshot=file, resume=True), run(), strict=True):
        assert difference(one, other) < 1e-10


FORMS = [
    *(FORMATS["integer"](width, width // 2) for width in range(2, 9)),
    FORMATS["integer"](8, 4, floor=True),
    *(FORMATS["integer"](n, 2, rounding="up", overflow="wrap") for n in (4, 6)),
    FORMATS["integer"](5, 2, overflow="symmetric"),
    *(FORMATS["minifloat_ieee"](*p) for p in ([8, 4, 7], [6, 3, 3])),
    FORMATS["fp8"](4, 3),
    FORMATS["block_fp"](6, 8, 127, (1, 4)),
    FORMATS["log"](5, 7),
    None,
]


@pytest.mark.parametrize(("layout", "rank"), [(ROWS, 3), (MAPS, 5), (PARAMETER, 3)])
@pytest.mark.parametrize("chosen", ["one rule", "all rules"])
def test_every_candidate_is_rounded_in_its_own_format(layout, rank, chosen):
    formats = FORMS[:7] * 5 if chosen == "one rule" else FORMS
    shape = [6, 10, 8, 4, 5][:rank]
    shape[layout.candidates] = len(formats)
    x = torch.randn(shape) * 3
    channels = layout.seen(x).shape[layout.channels]
    extents = [(channels,)] * len(formats)
    here = Rounder(formats, extents, layout, rank, x)(x)
    there = Rounder(formats, extents, layout, rank, x.cuda())
    assert torch.equal(there(x.cuda()).cpu(), here)
    assert len(there.groups) == (1 if chosen == "one rule" else 8)


@pytest.mark.parametrize("size", [2, 64, 100, 256, 5000])
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_is_that_of_torch(size, affine):
    def run(norm):
        torch.manual_seed(0)
        x = torch.randn(300, size, device="cuda", requires_grad=True)
        given = [x.sin() + 1, torch.zeros(300).cuda(), torch.ones(300).cuda()]
        learnt = [torch.randn(300, device="cuda", requires_grad=True) for _ in range(2)]
        y = norm(*given, *(learnt if affine else (None, None)))
        (y * torch.randn_like(y)).sum().backward()
        return [y, x.grad, *given[1:], *(t.grad for t in learnt if affine)]

    def plain(x, mean, var, weight, bias):
        return F.batch_norm(x.unsqueeze(0), mean, var, weight, bias, True, 0.1, 1e-5).squeeze(0)

    def ours(x, mean, var, weight, bias):
        return batch_norm(x, (mean, var), weight, bias, 0.1, 1e-5)

    for mine, other in zip(run(ours), run(plain), strict=True):
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-4 if size > 2 else 1e-2)


def test_a_float32_population_learns_as_one_by_one():
    data, models = (rows(2000, 1), rows(300, 2)), [network(w) for w in (3, 8, 6)]
    alone = copy.deepcopy(models)
    chosen = options(precision="32", max_epochs=2)
    together = train_population(models, data, chosen, batch_size=64, device="cuda")
    for model, outcome in zip(alone, together, strict=True):
        (one,) = train_population([model], data, chosen, batch_size=64, device="cuda")
        assert outcome.loss == pytest.approx(one.loss, abs=1e-3)


def test_the_best_epoch_is_kept_while_steps_are_replayed():
    data = rows(1000, 1), rows(300, 2)
    chosen = [options(schedule="constant", max_epochs=8, learning_rate=r) for r in (0.3, 0.01, 0.1)]
    models = [network(width) for width in (3, 8, 5)]
    others = copy.deepcopy(models)
    here = train_population(models, data, chosen, batch_size=64, device="cuda", keep_best=True)
    there = train_population(others, data, chosen, batch_size=64, device="cpu", keep_best=True)
    assert any(out.best_epoch < out.epochs - 1 for out in there), "else the last is the best"
    for one, other, a, b in zip(models, others, here, there, strict=True):
        assert a.best_epoch == b.best_epoch
        assert difference(one, other) < 1e-8
