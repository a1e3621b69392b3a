"""What cannot be trained is refused before the first step, in one sentence."""

import pytest
import torch
from torch import fx, nn

from chop.dataset import TensorSplit


class Odd(nn.Linear):
    def forward(self, x):
        return None, super().forward(x)


def labelled(y) -> TensorSplit:
    return TensorSplit(torch.randn(len(y), 16), y)


@pytest.mark.parametrize(
    ("model", "split", "sentence"),
    [
        (
            Odd(16, 5),
            None,
            "a tuple that does not start with a tensor, .* return a tensor, a tuple",
        ),
        (nn.Linear(16, 3), None, r"labels are 0 to 4, but the model has 3 classes, 0 to 2"),
        (nn.Linear(8, 5), None, r"cannot process a batch of shape \(2, 16\): mat1 and mat2"),
        (nn.Linear(8, 5), None, r"; build the model for such samples"),
        (nn.Unflatten(1, (4, 4)), None, r"no trainable|must return scores"),
        (nn.Linear(16, 5), labelled(torch.rand(64)), "must be class indices, .* not float32"),
        (nn.Linear(16, 5), labelled(torch.eye(5).long()), "must be class indices, one per sample"),
        (nn.Linear(16, 5), labelled(torch.full((64,), -1)), "labels are -1 to -1"),
    ],
)
def test_a_model_and_data_that_do_not_fit(small, model, split, sentence):
    of = small.data() if split is None else small.data(train_dataset=split)
    with pytest.raises(ValueError, match=sentence):
        small.training(model=model, of=of)


class Wrong(nn.Linear):
    def forward(self, x):
        return super().forward(x).T.no_such_thing


@pytest.mark.slow  # fx explains errors with the help of torch._dynamo, which takes long to import
def test_a_graph_that_fails_is_a_sentence_and_a_model_that_fails_shows_where(small):
    graph = fx.Graph()
    scores = graph.call_module("fc", (graph.placeholder("x"),))
    graph.output(graph.call_function(getattr, (scores, "no_such_thing")))
    model = fx.GraphModule(nn.ModuleDict({"fc": nn.Linear(16, 5)}), graph)
    said = r"cannot process a batch of shape \(2, 16\): 'Tensor' object"
    with pytest.raises(ValueError, match=said):
        small.training(model=model)
    with pytest.raises(AttributeError, match="no_such_thing"):
        small.training(model=Wrong(16, 5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int16])
def test_labels_of_any_integer_type_and_samples_of_any_float_will_do(small, dtype):
    of = small.data()
    of.train_dataset = TensorSplit(of.train_dataset.x.double(), of.train_dataset.y.to(dtype))
    assert small.training(of=of, max_epochs=1).fit().progress.epoch == 1


@pytest.mark.parametrize(("size", "batch", "better"), [(129, 64, 65), (129, 128, 129), (40, 1, 2)])
def test_a_batch_of_one_sample_is_foreseen_where_batch_norm_would_fail(small, size, batch, better):
    with pytest.raises(ValueError, match=f"cannot train on; use `batch_size={better}`$"):
        small.training(of=small.data(size=size, batch_size=batch))
    small.training(of=small.data(size=size, batch_size=better), max_epochs=1).fit()
    without = nn.Linear(16, 5)
    small.training(model=without, of=small.data(size=size, batch_size=batch), max_epochs=1).fit()


class OneDecides(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2 if x.shape[0] == 1 else super().forward(x)


@pytest.mark.slow  # torch.export takes long to import
def test_so_is_one_that_a_graph_refuses(small):
    from chop.ir import MaseGraph

    graph = MaseGraph(OneDecides(16, 5), dummy_in={"x": torch.ones(2, 16)})
    said = r"samples, which the graph refuses: this graph is only for .*; use `batch_size=65`$"
    with pytest.raises(ValueError, match=said):
        small.training(model=graph.model, of=small.data(size=129, batch_size=64))
    of = small.data(size=129, batch_size=65)
    small.training(model=graph.model, of=of, max_epochs=1).fit()


def test_patience_needs_something_to_watch(small):
    with pytest.raises(ValueError, match="`early_stopping` needs a validation split"):
        small.training(of=small.data(val_dataset=None), early_stopping=2)


def test_looking_changes_neither_the_mode_nor_the_random_numbers(small):
    model = small.network().train()
    before = torch.get_rng_state()
    small.training(model=model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_processes_that_do_not_know_of_each_other_are_refused(small, monkeypatch):
    from chop.training.devices import take_place

    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match=r"4 processes were started .* so that their product is 4"):
        take_place(small.options())
