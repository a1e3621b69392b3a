"""Functions in C++ are given no tensor that is not as they read it."""

from pathlib import Path

import pytest
import torch

import chop
from chop.methods.edge_tables import edge_rows
from chop.numerics.compiled import find_compiler
from chop.numerics.fast.chain import Chain, ChainLayer
from chop.numerics.fast.pointers import address, in_memory_order


@pytest.mark.parametrize(
    ("tensor", "came"),
    [
        (torch.zeros(1), r"\[1\] of float32 on cpu"),
        (torch.zeros(3, 2), r"\[3, 2\] of float32 on cpu"),
        (torch.zeros(2, 3).double(), r"\[2, 3\] of float64 on cpu"),
        (torch.zeros(3, 2).T, r"\[2, 3\] of float32 on cpu, with gaps"),
        (torch.zeros(2, 3, device="meta"), r"\[2, 3\] of float32 on meta"),
    ],
)
def test_a_tensor_of_another_kind_is_refused_in_one_sentence(tensor, came):
    with pytest.raises(ValueError, match=rf"sum computes with x of the shape \[2, 3\].*{came}"):
        address("sum", "x", tensor, (2, 3))


def test_an_index_beyond_its_bound_is_refused():
    index = torch.tensor([0, 4])
    assert address("sum", "index", index, (2,), torch.int64, below=5) == index.data_ptr()
    for bound, numbers in ((4, "from 0 to 4"), (0, "from 0 to 4")):
        with pytest.raises(ValueError, match=numbers):
            address("sum", "index", index, (2,), torch.int64, below=bound)
    with pytest.raises(ValueError, match="from -1 to 4"):
        address("sum", "index", index - torch.tensor([1, 0]), (2,), torch.int64, below=5)


def test_numbers_in_memory_order_are_all_numbers_of_a_tensor():
    x = torch.randn(2, 3, 4).permute(2, 0, 1)
    assert in_memory_order(x).sort().values.equal(x.flatten().sort().values)
    with pytest.raises(RuntimeError, match="out of bounds"):
        in_memory_order(torch.zeros(1).expand(8))


def test_code_that_calls_c_plus_plus_takes_no_address_by_itself():
    texts = {file: file.read_text() for file in Path(chop.__file__).parent.rglob("*.py")}
    calling = {file.name: text for file, text in texts.items() if "c_void_p" in text}
    assert {"compiled.py", "chain.py", "edge_rows.py", "edge_training.py"} <= calling.keys()
    assert not [name for name, text in calling.items() if "data_ptr" in text]


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_rows_of_tables_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="from 0 to 6 in index, and index has numbers from 0 to 7"):
        edge_rows.summed(torch.randn(7, 3), torch.arange(8).view(1, 4, 2))


def test_a_chain_with_numbers_outside_the_rows_of_values_is_refused():
    layer = ChainLayer(4, 3, 0, -1, 12, 13, 14, -1, True, True, 0)
    x, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    Chain([layer], 26, x, labels)
    for layers, count, y in (
        ([layer], 25, labels),
        ([layer._replace(shares_bits=False)], 16, labels),
        ([layer], 26, labels + 1),
    ):
        with pytest.raises(ValueError, match=r"^chain "):
            Chain(layers, count, x, y)
