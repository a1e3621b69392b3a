"""Files of users with several inputs, and with labels of a regression or of pixels."""

import logging

import numpy as np
import pytest
import torch

from chop.dataset import MaseDataModule, MaseDatasetInfo, get_dataset, get_dataset_info
from chop.dataset.base import check_task

ROWS = 60
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((ROWS, 3)) * 10 + 5
PRICE = X @ [1.0, 2.0, 0.5]
CODES = np.arange(ROWS) % 3
IMAGE = RANDOM.integers(0, 256, (ROWS, 3, 4, 5), np.uint8)
MASK = RANDOM.integers(0, 4, (ROWS, 4, 5), np.uint8)
WORDS = np.array(["a"] * ROWS)
IDS = RANDOM.integers(0, 9, (ROWS, 7))
SEQUENCES = RANDOM.standard_normal((ROWS, 5, 2)) + 1


@pytest.fixture
def npz(tmp_path, cache):
    """`npz(x=…, y=…)` writes a file and returns its path."""

    def write(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return tmp_path / "own.npz"

    return write


def csv_of(folder, labels):
    rows = [",".join(map(repr, row)) for row in X.tolist()]
    lines = ["a,b,c,price", *(f"{row},{label}" for row, label in zip(rows, labels, strict=True))]
    (folder / "own.csv").write_text("\n".join(lines))
    return folder / "own.csv"


def all_of(name, **options):
    parts = [get_dataset(name, split, **options) for split in ("train", "validation", "test")]
    return torch.cat([part.y for part in parts])


def test_a_column_of_real_numbers_is_a_regression(tmp_path, cache):
    file = csv_of(tmp_path, PRICE.tolist())
    info = get_dataset_info("csv", path=file)
    assert (info.task, info.num_targets, info.num_outputs, info.num_classes) == ("reg", 1, 1, None)
    y = all_of("csv", path=file)
    assert y.dtype == torch.float32
    assert np.allclose(np.sort(y.numpy()), np.sort(PRICE), rtol=1e-6)


def test_the_option_task_makes_numbers_of_classes(tmp_path, cache):
    file = csv_of(tmp_path, CODES.tolist())
    assert get_dataset_info("csv", path=file).task == "cls"
    for name in ("reg", "regression"):
        assert get_dataset_info("csv", path=file, task=name).task == "reg"
    assert sorted(all_of("csv", path=file, task="reg").tolist()) == sorted(CODES.tolist())


def test_several_targets_and_maps_of_classes(npz):
    info = get_dataset_info("npz", path=npz(x=X, y=X[:, :2]))
    assert (info.task, info.num_targets) == ("reg", 2)
    info = get_dataset_info("npz", path=npz(x=IMAGE, y=MASK))
    assert (info.task, info.num_classes, info.image_size) == ("dense", 4, (3, 4, 5))
    assert not info.image_classification
    assert all_of("npz", path=npz(x=IMAGE, y=MASK)).shape == (ROWS, 4, 5)


def test_pixels_that_do_not_count_are_no_class(npz):
    mask = MASK.astype(np.int64)
    mask[:, 0, 0] = -100
    assert get_dataset_info("npz", path=npz(x=IMAGE, y=mask)).num_classes == 4


def test_named_arrays_are_inputs_of_the_same_name(npz):
    """Floats in rows are standardised, bytes of images are scaled, and indices stay."""
    file = npz(image=IMAGE, table=X, ids=IDS, y=CODES)
    info = get_dataset_info("npz", path=file)
    assert info.input_shapes == {"image": (3, 4, 5), "table": (3,), "ids": (7,)}
    assert (info.num_features, info.image_size, info.num_classes) == (None, None, 3)
    train = get_dataset("npz", "train", path=file)
    inputs, _ = train[:]
    assert list(inputs) == ["image", "table", "ids"]
    assert inputs["table"].mean(0).abs().max() < 1e-5
    assert inputs["image"].dtype == torch.float32
    assert inputs["image"].max() <= 1
    assert inputs["ids"].dtype == torch.int64
    again = get_dataset("npz", "train", path=file)  # from the cache
    assert again.fingerprint == train.fingerprint
    assert list(again.x) == list(train.x)
    raw = get_dataset("npz", "train", path=file, standardize=False).x["table"]
    assert raw.mean() > 3


def test_splits_of_named_arrays(npz):
    rows = {"train": slice(40), "test": slice(40, None)}
    arrays = {
        f"{name}_{part}": array[where]
        for part, where in rows.items()
        for name, array in {"table": X, "ids": IDS, "y": CODES}.items()
    }
    data = MaseDataModule("npz", batch_size=8, custom_path=npz(**arrays), standardize=False)
    data.setup()
    assert (len(data.train_dataset), len(data.val_dataset), len(data.test_dataset)) == (36, 4, 20)
    x, y = next(iter(data.test_dataloader()))
    assert torch.equal(x["ids"], torch.from_numpy(IDS[40:48]))
    assert torch.equal(y, torch.from_numpy(CODES[40:48]))


@pytest.mark.parametrize(("features", "size"), [(X, (3, None)), (IMAGE, (None, (3, 4, 5)))])
def test_one_named_table_or_array_of_images_is_that_of_any_model(npz, features, size):
    info = get_dataset_info("npz", path=npz(features=features, y=CODES))
    assert (info.num_features, info.image_size) == size


@pytest.mark.parametrize("array", [IDS, IDS.astype(np.uint8), IDS[:, 0], MASK.astype(np.int32)])
def test_integers_stay_so_and_keep_their_name_if_they_are_the_only_input(npz, array, caplog):
    file = npz(ids=array, y=CODES)
    with caplog.at_level(logging.INFO, "chop"):
        info = get_dataset_info("npz", path=file)
    assert (info.input_shapes, info.num_features) == ({"ids": array.shape[1:]}, None)
    assert "standardised" not in caplog.text
    ids = torch.cat([get_dataset("npz", s, path=file)[:][0]["ids"] for s in ("train", "test")])
    assert ids.dtype == torch.int64
    assert set(ids.unique().tolist()) <= set(array.ravel().tolist())


def test_the_only_input_of_a_tensors_file_keeps_its_name(tmp_path, cache):
    torch.save({"ids": torch.from_numpy(IDS), "y": torch.from_numpy(CODES)}, tmp_path / "own.pt")
    inputs, _ = get_dataset("tensors", "train", path=tmp_path / "own.pt")[:]
    assert inputs["ids"].dtype == torch.int64


def test_sequences_of_floats_may_be_the_only_input(npz, caplog):
    file = npz(seq=SEQUENCES, y=CODES)
    with caplog.at_level(logging.INFO, "chop"):
        assert get_dataset_info("npz", path=file).input_shapes == {"seq": (5, 2)}
    assert "standardised" not in caplog.text
    inputs, _ = get_dataset("npz", "train", path=file, test=0, validation=0)[:]
    assert inputs["seq"].dtype == torch.float32
    assert inputs["seq"].sum().item() == pytest.approx(SEQUENCES.sum(), rel=1e-4)


def test_standardising_is_told_only_if_an_input_is_a_table_of_floats(npz, caplog):
    with caplog.at_level(logging.INFO, "chop"):
        get_dataset_info("npz", path=npz(ids=IDS, seq=SEQUENCES, y=CODES))
        assert "standardised" not in caplog.text
        get_dataset_info("npz", path=npz(ids=IDS, table=X, y=CODES))
    assert "the features are standardised with the mean" in caplog.text


def test_arrays_beside_x_are_not_used_and_that_is_told(npz, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        info = get_dataset_info("npz", path=npz(x=X, y=CODES, ids=IDS, names=np.array(["a"])))
    assert info.num_features == 3
    assert "ids is not used, as the file has x; to use several inputs, name them" in caplog.text


@pytest.mark.parametrize(
    ("arrays", "options", "sentence"),
    [
        ({"x": X, "y": PRICE}, {"task": "cls"}, "labels such as .* are not classes"),
        ({"x": X, "y": WORDS}, {"task": "reg"}, "are not numbers, which a reg"),
        ({"x": X, "y": np.where(CODES == 2, np.nan, PRICE)}, {}, "label of sample 2 is not finite"),
        ({"x": IMAGE, "y": MASK - 5.0}, {}, "of a pixel is not a class; number classes from 0"),
        ({"x": X, "y": np.eye(3)[CODES]}, {}, "convert one-hot labels .* `task='reg'`"),
        ({"x": IMAGE, "y": MASK + 0.5}, {"task": "dense"}, "an integer for each pixel"),
        ({"x": X, "y": CODES}, {"task": "dense"}, "an integer for each pixel"),
        ({"a": X, "b": IDS[:-1], "y": CODES}, {}, "59 samples of input 'b' but 60 labels"),
        ({"a": X, "b": WORDS, "y": CODES}, {}, "samples of input 'b' of type .* are not numbers"),
        ({"a": X, "b": IDS}, {}, "has the arrays a, b; it needs x and y"),
        ({"a_train": X, "y_train": CODES, "b_test": X, "y_test": CODES}, {}, "it needs x and y"),
        ({"x": X, "y": CODES}, {"task": "clas"}, "task"),
        ({"x": X[:, 0], "y": CODES}, {}, r"nor images .*; save x\[:, None\], a table of one"),
        ({"x": SEQUENCES, "y": CODES}, {}, r"x\[:, None\]; if they are sequences, .* as seq"),
        ({"x": IMAGE[..., None], "y": CODES}, {}, "under another name than x, such as volume"),
        ({"ids": IDS, "y": CODES}, {"standardize": True}, "the inputs ids and no table of floats"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(npz, arrays, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        get_dataset_info("npz", path=npz(**arrays), **options)


@pytest.mark.parametrize(
    ("facts", "task", "fix"),
    [
        ({"task": "reg"}, "cls", "real numbers as labels, .* use `task='reg'`"),
        ({"num_targets": 1}, "dense", "use `task='reg'`"),
        ({"image_classification": True}, "reg", "classes as labels, .* use `task='cls'`"),
        ({"task": "dense"}, "cls", "a class for each pixel as labels, .* use `task='dense'`"),
    ],
)
def test_a_task_without_labels_is_refused_with_the_right_one(facts, task, fix):
    info = MaseDatasetInfo(name="mine", **facts)
    with pytest.raises(ValueError, match=f"data set 'mine' has .*{fix}"):
        check_task(task, info)
    check_task(info.known_task, info)


def test_a_declared_task_has_a_known_name():
    assert MaseDatasetInfo(name="mine", task="regression").task == "reg"
    with pytest.raises(ValueError, match="data set 'mine': unknown task 'lm'"):
        MaseDatasetInfo(name="mine", task="lm")
