"""How many LUTs truth tables take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chop.hardware.estimate.truth_tables import table_features


def table(function, inputs):
    return np.array([function(i) for i in range(2**inputs)], dtype=float)


def test_a_function_of_five_inputs_is_half_a_lut_and_one_of_six_a_whole_one():
    parity = lambda i: bin(i).count("1") % 2  # noqa: E731
    assert table_features(table(parity, 6)) == {"table": 1}
    assert table_features(table(parity, 8)) == {"table_part": 4}
    both = table(lambda i: parity(i) + 2 * (i % 7 == 0), 5)
    assert table_features(table(parity, 5)) == table_features(both) == {"table": 1}


def test_constants_and_wires_cost_nothing():
    assert not table_features(np.full(64, 3.0))
    assert not table_features(table(lambda i: i, 6))
    assert not table_features(table(lambda i: 7 - (i >> 3), 6))  # inverted


def test_equal_and_opposite_outputs_count_once():
    both = table(lambda i: 3 if bin(i).count("1") % 2 else 0, 6)
    opposite = table(lambda i: 1 if bin(i).count("1") % 2 else 2, 6)
    assert table_features(both) == table_features(opposite) == {"table": 1}


def test_inputs_without_effect_do_not_count():
    assert table_features(table(lambda i: (i >> 4) % 3 == 0, 9)) == {"small_table": 1}


def test_entries_that_never_occur_cost_nothing():
    entries = table(lambda i: bin(i).count("1") % 2, 6)
    entries[8:] = np.nan
    assert table_features(entries).total() <= 1
    assert not table_features(np.full(16, np.nan))


@given(st.lists(st.integers(-8, 7), min_size=64, max_size=64))
def test_a_table_of_six_inputs_takes_no_more_than_a_lut_for_each_output(entries):
    found = table_features(np.array(entries, dtype=float))
    assert set(found) <= {"small_table", "table"}
    assert found.total() <= 4  # bits


@pytest.mark.parametrize("inputs", [7, 9, 10])
def test_more_inputs_take_at_most_a_full_table(inputs):
    entries = np.random.default_rng(0).integers(0, 2, 2**inputs).astype(float)
    assert 0 < table_features(entries)["table_part"] <= 2 ** (inputs - 6)
