"""What a graph from a file may call, as a list for people to review: the table of ops decides it.

If an op was added on purpose, and it touches nothing but the values that it is given, write its
lines into tests/golden/saved_graph_calls.txt; otherwise define its row with pure=False.
"""

import inspect
from pathlib import Path
from types import FunctionType

import pytest
import torch
from torch import Tensor

from chop.ir.checked import CHECKED
from chop.ir.graph.names import ForeignName, SavedNames, check_method
from chop.ir.ops import TABLE
from chop.ir.pure import FUNCTIONS, MATH, METHODS, NAMED, OPERATORS, PYTHON, SPACES, WITHOUT_A_ROW

GOLDEN = Path(__file__).parents[1] / "golden" / "saved_graph_calls.txt"


def called() -> set[tuple[str, str]]:
    """SavedNames, and where they are: of a function, of a method, of an operator."""
    return {
        *((name.rpartition(".")[2], name.rpartition(".")[0]) for name in NAMED),
        *((name, "method") for name in METHODS),
        *((name, "torch.ops.aten") for name in OPERATORS if hasattr(torch.ops.aten, name)),
    }


def reviewed() -> set[tuple[str, str]]:
    rows = [line.partition(": ") for line in GOLDEN.read_text().splitlines()]
    return {(name, place) for name, _, places in rows for place in places.split()}


def exists(name: str, place: str) -> bool:
    """Whether this torch and this Python have it: older ones have less."""
    homes = SPACES | {"method": Tensor, "torch.ops.aten": torch.ops.aten}
    return hasattr(homes[place], name)


def test_the_list_is_the_reviewed_one():
    assert called() - reviewed() == set()
    assert {pair for pair in reviewed() - called() if exists(*pair)} == set()


def test_all_that_is_called_is_in_a_pure_row_or_listed_without_one():
    rows = {fn for op in TABLE if op.pure for fn in op.functions}
    spelt = {name + end for name in WITHOUT_A_ROW for end in ("", "_")}
    listed = {fn for name, fn in NAMED.items() if name.rpartition(".")[2] in spelt}
    assert FUNCTIONS - rows - listed - PYTHON - MATH == set()
    assert not {fn for op in TABLE if not op.pure for fn in op.functions} & FUNCTIONS


CALLS = {"open", "exec", "eval", "__import__", "system", "Popen", "load", "save"}


def qualified(fn):
    return f"{fn.__module__}.{fn.__qualname__}"


@pytest.mark.parametrize(
    "fn",
    sorted((fn for fn in FUNCTIONS if isinstance(fn, FunctionType)), key=qualified),
    ids=qualified,
)
def test_a_function_in_python_touches_nothing_else(fn):
    assert not CALLS & set(inspect.unwrap(fn).__code__.co_names)


BARRED = """
    torch.load torch.save torch.from_file torch.compile torch.vmap torch.cond torch.set_printoptions
    torch.Tensor.apply_ torch.Tensor.map_ torch.Tensor.map2_ torch.Tensor.register_hook
    torch.Tensor.numpy torch.Tensor.backward torch.Tensor.set_ torch.Tensor.data_ptr
    torch.Tensor.untyped_storage torch.Tensor.share_memory_ torch.Tensor.__reduce_ex__
    torch.Tensor.__setstate__ torch.Tensor.resize_ torch.Tensor.retain_grad torch.Tensor.storage
    operator.attrgetter operator.methodcaller operator.itemgetter operator.call operator.__call__
    builtins.eval builtins.exec builtins.open builtins.setattr builtins.map builtins.print
    builtins.type builtins.vars builtins.sorted builtins.input builtins.__import__
"""


@pytest.mark.parametrize("name", BARRED.split())
def test_what_reaches_beyond_its_arguments_is_not_called(name):
    with pytest.raises(ForeignName):
        SavedNames().function(name)
    if name.startswith("torch.Tensor."):
        with pytest.raises(ForeignName):
            check_method(name.rpartition(".")[2])


def test_every_name_is_that_of_one_function_or_of_the_one_that_checks_its_tensors():
    names = SavedNames()
    for fn in FUNCTIONS:
        assert names.function(names.of_function(fn)) is CHECKED.get(fn, fn)


def test_no_overload_of_a_function_goes_around_the_one_that_checks_its_tensors():
    packets = [fn for fn in CHECKED if hasattr(fn, "overloads")]
    assert packets
    for packet in packets:
        for overload in set(packet.overloads()) - {"default"}:
            with pytest.raises(ForeignName):
                SavedNames().function(f"torch.ops.{packet}.{overload}".replace("aten::", "aten."))
