"""Dividing, standardising and cleaning tables, against pandas and scikit-learn."""

from pathlib import Path

import numpy as np
import pytest

from chop.dataset.tabular import (
    Cut,
    check_classes,
    check_finite,
    coded,
    first_of_each,
    held_out,
    moments,
    standardize,
)

FILE = Path("own.csv")


@pytest.fixture
def train_test_split(package):
    return package("sklearn.model_selection").train_test_split


def test_rows_are_held_out_by_the_seed():
    kept, held = held_out(10, 0.2, 42)
    assert kept.tolist() == [5, 0, 7, 2, 9, 4, 3, 6]
    assert held.tolist() == [8, 1]


@pytest.mark.parametrize("size", [5, 10, 999, 1000, 12_345])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.33])
def test_rows_are_held_out_as_scikit_learn_does(train_test_split, size, share):
    theirs = train_test_split(np.arange(size), test_size=share, random_state=42)
    for mine, its in zip(held_out(size, share, 42), theirs, strict=True):
        assert np.array_equal(mine, its)


def test_a_cut_is_test_first_then_validation_of_the_rest(train_test_split):
    order, rows = Cut().order({"train": 1000})
    rest, test = train_test_split(np.arange(1000), test_size=0.2, random_state=42)
    train, validation = train_test_split(rest, test_size=0.1, random_state=42)
    assert rows == {"train": 720, "validation": 80, "test": 200}
    assert np.array_equal(order, np.concatenate([train, validation, test]))


def test_a_cut_takes_only_what_the_file_has_not():
    order, rows = Cut(validation=0.5).order({"train": 10, "test": 3})
    assert rows == {"train": 5, "validation": 5, "test": 3}
    assert order[-3:].tolist() == [10, 11, 12]
    assert sorted(order[:10]) == list(range(10))
    order, rows = Cut().order({"train": 2, "validation": 1, "test": 1})
    assert order.tolist() == [0, 1, 2, 3]


def test_a_share_of_nothing_is_nothing():
    rows = {"train": 4, "validation": 0, "test": 0}
    assert Cut(test=0, validation=0).order({"train": 4})[1] == rows


@pytest.mark.parametrize("wrong", [{"test": 1.0}, {"validation": -0.1}, {"test": 20}])
def test_a_share_is_below_one(wrong):
    with pytest.raises(ValueError, match="must be from 0 to below 1, not"):
        Cut(**wrong)


def test_standardised_columns_have_mean_0_and_deviation_1_over_the_rows_that_were_fitted():
    x = np.random.default_rng(0).standard_normal((1000, 3)) * [1, 1e3, 1e-3] + [0, 1e4, 3]
    x[:, 0] = 5  # a constant column
    fitted = standardize(x, 800)[:800].astype(np.float64)
    np.testing.assert_allclose(fitted.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(fitted.std(0), [0, 1, 1], atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_standardisation_is_that_of_scikit_learn(package, dtype):
    random = np.random.default_rng(0)
    x = (random.standard_normal((70_000, 4)) * [1, 1e3, 1e-3, 50] + [0, 1e4, 3, -7]).astype(dtype)
    x[:, 1] = 5  # a constant column
    fit = 66_000  # more than one block
    scaler = package("sklearn.preprocessing").StandardScaler().fit(x[:fit].astype(np.float64))
    mean, scale = moments(x[:fit])
    # sums in another order: equal up to rounding in double precision
    np.testing.assert_allclose(mean, scaler.mean_, rtol=1e-11)
    np.testing.assert_allclose(scale, scaler.scale_, rtol=1e-11)
    mine = standardize(x, fit)
    assert mine.dtype == np.float32
    theirs = scaler.transform(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(mine, theirs, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicates_are_dropped_as_pandas_does(package, dtype):
    random = np.random.default_rng(1)
    x = random.integers(-1, 2, (3000, 5)).astype(dtype)
    x[::7] *= -0.0  # minus zero equals zero
    y = random.integers(0, 2, 3000)
    frame = package("pandas").DataFrame(x).assign(label=y).drop_duplicates()
    assert np.array_equal(first_of_each(x, y), frame.index)
    assert len(frame) < 500


def test_rows_that_differ_in_the_last_bit_or_the_label_only_are_kept():
    x = np.array([[1.0, 2.0], [1.0, np.nextafter(2.0, 3)], [1.0, 2.0], [2.0, 1.0]])
    assert first_of_each(x, np.array([0, 0, 1, 0])).tolist() == [0, 1, 2, 3]
    assert first_of_each(x, np.array([0, 0, 0, 0])).tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "b"], ("a", "b")),
        (["10", "2", "2"], ("2", "10")),
        ([10, 2, 2], ("2", "10")),
        ([10.0, 2.0, 2.0], ("2", "10")),
        ([True, False, False], ("False", "True")),
        (["1", "x", "x"], ("1", "x")),
    ],
)
def test_classes_are_the_distinct_labels_in_order(labels, classes):
    codes, names = coded(np.array(labels), FILE)
    assert names == classes
    assert codes.dtype == np.int64
    assert [str(label).removesuffix(".0") for label in labels] == [names[code] for code in codes]


@pytest.mark.parametrize("labels", [[0.5, 1], [np.nan, 1], [np.inf, 1], ["0.5", "1"]])
def test_numbers_between_whole_ones_are_no_classes(labels):
    with pytest.raises(ValueError, match="are not classes; use integers or words"):
        coded(np.array(labels), FILE)


def test_missing_values_are_counted_and_named():
    x = np.ones((5, 3))
    x[1, 0], x[2, 2], x[3, 2] = np.nan, np.inf, 1e300
    with pytest.raises(ValueError, match=r"own.csv: 3 values are NaN.*, in a, c; remove"):
        check_finite(FILE, x, ("a", "b", "c"))
    check_finite(FILE, np.ones((5, 3), np.uint8))


def test_a_class_without_samples_and_a_single_class_are_refused():
    with pytest.raises(ValueError, match="none of the 3 samples is of class b"):
        check_classes(FILE, np.array([0, 2, 2]), "abc")
    with pytest.raises(ValueError, match="all labels are a; at least two classes are needed"):
        check_classes(FILE, np.array([0, 0]), "a")
