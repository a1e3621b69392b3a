"""Contexts inside forward() and hooks, which a graph keeps or warns of."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph

from .export_models import X


class NoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            y = self.fixed(x).exp()
        return self.head(y)


class Autocast(NoGrad):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fixed(x)
        with torch.autocast("cpu", enabled=False):
            return self.head(y.float())


class Inference(NoGrad):
    @torch.inference_mode()
    def forward(self, x):
        return self.head(self.fixed(x))


class Noisy(NoGrad):
    def forward(self, x):
        return self.head(x + torch.rand(4))


class Average(NoGrad):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = self.fixed(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class Counter(NoGrad):
    def __init__(self):
        super().__init__()
        self.head.steps = 0

    def forward(self, x):
        self.head.steps += 1
        return self.head(x) * self.head.steps


class Remembering(NoGrad):
    def forward(self, x):
        self.last = self.fixed(x)
        return self.head(self.last)


class TestAssignments:
    def test_fx_warns_of_those_to_buffers(self, caplog):
        MaseGraph(nn.Sequential(Average()))
        (record,) = caplog.records
        assert record.getMessage() == (
            "forward() uses assignments to buffers (0.mean), which the graph does not keep: they "
            "keep their values; use front_end='export' with dummy_in to keep it"
        )

    def test_export_keeps_them_and_is_chosen_for_it(self, caplog):
        model = Average().eval()
        graph = MaseGraph(model, dummy_in=X)
        assert graph.front_end == "export"
        assert "assignments" not in caplog.text
        graph = graph.clone()
        for _ in range(3):
            assert torch.allclose(graph.model(X["x"]), model(X["x"]), atol=1e-6)

    def test_fx_warns_of_those_to_numbers(self, caplog):
        graph = MaseGraph(Counter(), dummy_in=X)
        assert graph.front_end == "fx"
        assert "assignments to numbers (head.steps), which the graph does not keep" in caplog.text
        assert "front_end" not in caplog.text

    def test_results_that_a_module_remembers_need_no_warning(self, caplog):
        assert MaseGraph(Remembering(), dummy_in=X).front_end == "fx"
        assert not caplog.records


class TestContexts:
    def test_fx_warns_of_no_grad(self, caplog):
        graph = MaseGraph(NoGrad())
        (record,) = caplog.records
        assert f"forward() uses no_grad ({__file__} line " in record.getMessage()
        assert "gradients flow" in record.getMessage()
        assert graph.front_end == "fx"

    @pytest.mark.slow
    def test_export_keeps_no_grad_and_is_chosen_for_it(self, caplog):
        graph = MaseGraph(NoGrad(), dummy_in=X)
        assert graph.front_end == "export"
        assert "no_grad" not in caplog.text
        x = torch.randn(2, 4, requires_grad=True)
        graph.model(x).sum().backward()
        assert x.grad is None
        assert graph.model.fixed.weight.grad is None
        assert graph.model.head.weight.grad is not None

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{}, {"front_end": "export"}])
    def test_both_warn_of_autocast_once(self, caplog, options):
        graph = MaseGraph(Autocast(), dummy_in=X, **options)
        texts = [record.getMessage() for record in caplog.records if record.name.startswith("chop")]
        assert len(texts) == 1
        assert f"forward() uses autocast ({__file__} line " in texts[0]
        assert graph.model(X["x"]).dtype == torch.float32

    @pytest.mark.slow
    def test_both_warn_of_inference_mode(self, caplog):
        for options in ({}, {"dummy_in": X}):
            MaseGraph(Inference(), **options)
            assert "forward() uses inference_mode" in caplog.text
            caplog.clear()


class TestRandomNumbers:
    def test_fx_warns_of_those_that_become_constants(self, caplog):
        graph = MaseGraph(Noisy(), front_end="fx", dummy_in=X)
        (record,) = caplog.records
        assert "forward() uses random numbers (of a fixed shape)" in record.getMessage()
        assert "use front_end='export'" in record.getMessage()
        assert torch.equal(graph.model(X["x"]), graph.model(X["x"]))

    @pytest.mark.slow
    def test_export_draws_them_at_every_run_and_is_chosen_for_it(self, caplog):
        graph = MaseGraph(Noisy(), dummy_in=X)
        assert graph.front_end == "export"
        assert "random numbers" not in caplog.text
        assert not torch.equal(graph.model(X["x"]), graph.model(X["x"]))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x):
        return {"y": self.body(x)}


def tripled(module, args, result):
    return {"y": result["y"] * 3} if isinstance(result, dict) else result * 3


LOST = (
    "the hooks of the model itself (Plain) are not part of the graph, as those of its layers are; "
    "register them on graph.model"
)


class TestHooks:
    @pytest.mark.parametrize("front_end", ["fx", pytest.param("export", marks=pytest.mark.slow)])
    def test_those_of_the_model_itself_are_left_out_with_one_warning(self, front_end, caplog):
        model = Plain()
        expected = model(X["x"])["y"]
        for _ in range(2):
            model.register_forward_hook(tripled)
        graph = MaseGraph(model, front_end=front_end, dummy_in=X)
        texts = [record.getMessage() for record in caplog.records if record.name.startswith("chop")]
        assert texts == [LOST]
        assert torch.equal(graph.model(X["x"])["y"], expected)
        torch.testing.assert_close(model(X["x"])["y"], expected * 9)
        graph.model.register_forward_hook(tripled)
        torch.testing.assert_close(graph.model(X["x"])["y"], expected * 3)

    @pytest.mark.parametrize("front_end", ["fx", pytest.param("export", marks=pytest.mark.slow)])
    def test_those_of_its_layers_are_kept(self, front_end, caplog):
        model = Plain()
        model.body.register_forward_hook(tripled)
        model.body[0].register_forward_hook(tripled)
        graph = MaseGraph(model, front_end=front_end, dummy_in=X)
        assert "hooks" not in caplog.text
        torch.testing.assert_close(graph.model(X["x"])["y"], model(X["x"])["y"])
