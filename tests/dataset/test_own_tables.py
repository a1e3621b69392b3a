"""Users bring their own tables and arrays; what cannot be learned from is refused with the fix."""

import builtins
import importlib.util
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from chop.dataset import MaseDataModule, get_dataset, get_dataset_info, own_tables

ROWS = 60
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((ROWS, 3)) * [1, 10, 100] + 5
WORDS = np.array(["cat", "dog", "eel"])[np.arange(ROWS) % 3]
CODES = np.arange(ROWS) % 3
PICTURES = RANDOM.integers(0, 256, (ROWS, 3, 8, 6), np.uint8)


def write_csv(file, *, names=("a", "b", "c", "label"), delimiter=",", labels=WORDS, x=X):
    lines = [delimiter.join(names)] if names else []
    rows = zip(x.tolist(), labels, strict=True)
    lines += [delimiter.join([*map(repr, row), label]) for row, label in rows]
    file.write_text("\n".join(lines) + "\n")
    return file


def write_parquet(file, **columns):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: run `make test-all`")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), file)
    return file


def write_npz(file, **arrays):
    np.savez(file, **arrays)
    return file


def write_tensors(file, **arrays):
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    save_file(tensors, file) if file.suffix == ".safetensors" else torch.save(tensors, file)
    return file


def everything(name, path, **options):
    """All samples of all splits."""
    splits = [get_dataset(name, s, path=path, **options) for s in ("train", "validation", "test")]
    return torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits])


def write_own_parquet(file):
    return write_parquet(file, a=X[:, 0], b=X[:, 1], c=X[:, 2], label=WORDS)


WRITERS = {
    "csv": (".csv", write_csv),
    "parquet": (".parquet", write_own_parquet),
    "npz": (".npz", lambda file: write_npz(file, X=X, Y=WORDS)),
    "tensors": (".safetensors", lambda file: write_tensors(file, x=X, y=CODES)),
}
NO_PYARROW = importlib.util.find_spec("pyarrow") is None
PARQUET = pytest.param(
    "parquet", marks=pytest.mark.skipif(NO_PYARROW, reason="needs pyarrow: run `make test-all`")
)


@pytest.fixture
def file_of(tmp_path, cache):
    """`file_of("npz")` writes the same table into a file of that kind."""

    def write(kind):
        suffix, writer = WRITERS[kind]
        return writer(tmp_path / f"own{suffix}")

    return write


@pytest.mark.parametrize("name", [PARQUET, "npz", "tensors"])
def test_every_kind_of_file_gives_the_same_samples(file_of, name):
    samples = everything(name, file_of(name))
    assert all(map(torch.equal, samples, everything("csv", file_of("csv"))))


@pytest.mark.parametrize("name", ["csv", PARQUET, "npz", "tensors"])
def test_the_info_comes_from_the_file(file_of, name):
    info = get_dataset_info(name, path=file_of(name))
    assert (info.name, info.num_features, info.num_classes) == (name, 3, 3)
    words = ("0", "1", "2") if name == "tensors" else ("cat", "dog", "eel")
    assert info.class_names == words
    columns = ("a", "b", "c") if name in ("csv", "parquet") else ("x0", "x1", "x2")
    assert info.feature_names == columns
    assert info.available_splits == ("train", "validation", "test", "pred")


def test_training_samples_are_standardised_unless_the_user_says_no(file_of):
    train = get_dataset("csv", "train", path=file_of("csv"))
    assert train.x.mean(0).abs().max() < 1e-6
    assert (train.x.std(0, correction=0) - 1).abs().max() < 1e-6
    raw, codes = everything("csv", file_of("csv"), standardize=False)
    order = np.lexsort(raw.numpy().T), np.lexsort(X.T)
    assert np.array_equal(raw.numpy()[order[0]], X[order[1]].astype(np.float32))
    assert np.array_equal(codes[torch.from_numpy(order[0])], CODES[order[1]])


def test_shares_and_seed_are_the_users(file_of):
    options = {"test": 0.5, "validation": 0.0, "split_seed": 7}
    info = get_dataset_info("csv", path=file_of("csv"), **options)
    assert info.available_splits == ("train", "test", "pred")
    train = get_dataset("csv", "train", path=file_of("csv"), **options)
    assert len(train) == 30
    other = get_dataset("csv", "train", path=file_of("csv"), **options | {"split_seed": 8})
    assert not torch.equal(train.x, other.x)
    with pytest.raises(ValueError, match="data set 'csv' has no split 'validation'"):
        get_dataset("csv", "validation", path=file_of("csv"), **options)


def test_the_data_module_takes_it_whole(file_of):
    data = MaseDataModule("csv", batch_size=16, custom_path=file_of("csv"), label="label")
    data.prepare_data()
    data.setup()
    assert data.dataset_info.num_features == 3
    assert next(iter(data.train_dataloader()))[0].shape == (16, 3)


@pytest.mark.parametrize("name", ["csv", PARQUET])
def test_a_column_of_any_name_may_be_the_label(file_of, name):
    options = {"path": file_of(name), "label": "label"}
    assert get_dataset_info(name, **options).class_names == ("cat", "dog", "eel")
    with pytest.raises(ValueError, match="no column 'lable' of labels; did you mean 'label'"):
        get_dataset(name, "train", path=file_of(name), label="lable")
    with pytest.raises(ValueError, match="no column 'size' of labels; it has a, b, c, label"):
        get_dataset(name, "train", path=file_of(name), label="size")


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("a", "Class", "b", "c"), "Class"),
        (("a", "target", "b", "c"), "target"),
        (("a", "b", "c", "kind"), "kind"),
    ],
)
def test_the_label_is_found_by_its_usual_name_or_is_the_last(tmp_path, cache, names, label):
    columns = iter(X.T)
    table = {name: CODES if name == label else next(columns) for name in names}
    rows = np.column_stack(list(table.values())).tolist()
    lines = [",".join(names), *(",".join(map(repr, row)) for row in rows)]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    info = get_dataset_info("csv", path=tmp_path / "own.csv")
    assert info.feature_names == tuple(name for name in names if name != label)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("named", [True, False])
def test_csv_may_be_written_in_many_ways(tmp_path, file_of, delimiter, named):
    names, labels = (("a", "b", "c", "label"), WORDS) if named else ((), CODES.astype(str))
    file = write_csv(tmp_path / "other.csv", names=names, delimiter=delimiter, labels=labels)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert all(map(torch.equal, everything("csv", file), everything("csv", file_of("csv"))))


def test_a_first_line_that_is_a_row_stays_one(tmp_path, cache):
    file = write_csv(tmp_path / "rows.csv", names=())
    assert len(everything("csv", file)[1]) == ROWS
    assert get_dataset_info("csv", path=file, cache=cache).class_names == ("cat", "dog", "eel")


@pytest.mark.parametrize("names", [("0", "1", "2", "kind"), ("1.5", "7", "2", "class")])
def test_numbers_may_name_columns_beside_the_label(tmp_path, cache, names):
    file = write_csv(tmp_path / "named.csv", names=names)
    assert get_dataset_info("csv", path=file, cache=cache).feature_names == names[:3]


def test_quoted_cells_are_read(tmp_path, cache):
    file = tmp_path / "own.csv"
    rows = [f'{i}.5,"{i}","a, {"b" if i % 2 else "c"}"' for i in range(20)]
    file.write_text("\n".join(['"x, y",z,"the label"', *rows]))
    info = get_dataset_info("csv", path=file, label="the label")
    assert info.feature_names == ("x, y", "z")
    assert info.class_names == ("a, b", "a, c")


def test_a_csv_of_many_blocks_is_one_table(tmp_path, file_of, monkeypatch):
    monkeypatch.setattr("chop.dataset.text_tables.BLOCK", 7)
    x, _ = everything("csv", file_of("csv"), renew=True)
    assert torch.equal(x, everything("npz", file_of("npz"))[0])


class TestArrays:
    """npz and tensors: tables or pictures, divided by the user or by us."""

    def test_splits_of_the_user_are_kept(self, tmp_path, cache):
        arrays = {"x_train": X[:40], "y_train": CODES[:40], "X_test": X[40:], "y_test": CODES[40:]}
        file = write_npz(tmp_path / "own.npz", **arrays)
        test = get_dataset("npz", "test", path=file, standardize=False)
        assert np.array_equal(test.x, X[40:].astype(np.float32))
        assert len(get_dataset("npz", "train", path=file)) == 36
        arrays |= {"x_val": X[:5], "y_val": CODES[:5]}
        file = write_npz(tmp_path / "three.npz", **arrays)
        assert len(get_dataset("npz", "train", path=file)) == 40
        assert len(get_dataset("npz", "validation", path=file)) == 5

    def test_pictures_as_bytes_are_numbers_from_0_to_1(self, tmp_path, cache):
        file = write_npz(tmp_path / "own.npz", x=PICTURES, y=CODES)
        info = get_dataset_info("npz", path=file)
        assert info.image_classification
        assert info.image_size == (3, 8, 6)
        assert info.num_features is None
        test = get_dataset("npz", "test", path=file)
        assert test.x.dtype == torch.uint8
        assert torch.equal(test[:4][0], test.x[:4].float() / 255)

    def test_pictures_as_floats_stay_as_they_are(self, tmp_path, cache):
        floats = (PICTURES / 255).astype(np.float32)
        file = write_tensors(tmp_path / "own.pt", x=floats, y=CODES)
        sums = [x.sum((1, 2, 3)) for x in (everything("tensors", file)[0], torch.tensor(floats))]
        assert torch.equal(sums[0].sort().values, sums[1].sort().values)

    def test_a_pair_of_tensors_serves(self, tmp_path, file_of):
        torch.save((torch.from_numpy(X), torch.from_numpy(CODES)), tmp_path / "pair.pt")
        x, _ = everything("tensors", tmp_path / "pair.pt")
        assert torch.equal(x, everything("npz", file_of("npz"))[0])

    def test_bfloat16_and_labels_in_a_column_serve(self, tmp_path, cache):
        tensors = {"x": torch.from_numpy(X).bfloat16(), "y": torch.from_numpy(CODES)[:, None]}
        save_file(tensors, tmp_path / "half.safetensors")
        assert get_dataset("tensors", "train", path=tmp_path / "half.safetensors").x.shape[1] == 3

    def test_integers_and_booleans_are_features(self, tmp_path, cache):
        for dtype in (np.int64, np.uint8, bool):
            file = write_npz(tmp_path / f"{dtype.__name__}.npz", x=(X > 5).astype(dtype), y=CODES)
            assert get_dataset("npz", "train", path=file)[:][0].mean().abs() < 1e-6
            plain = get_dataset("npz", "train", path=file, standardize=False)[:][0]
            assert plain.unique().tolist() == [0, 1]


class TestRefusals:
    """One sentence with the path, the reason and the fix."""

    def refused(self, name, path, **options):
        with pytest.raises((ValueError, FileNotFoundError)) as refusal:
            get_dataset(name, "train", path=path, **options)
        message = str(refusal.value)
        assert "\n" not in message
        if path:
            assert path.name in message
        return message

    @pytest.mark.parametrize("name", ["csv", PARQUET, "npz", "tensors"])
    def test_no_path_no_such_file_and_an_empty_file(self, name, tmp_path, cache):
        message = self.refused(name, None)
        assert f"data set '{name}' needs your file: set `path` to a ." in message
        assert "does not exist" in self.refused(name, tmp_path / "own.x")
        (tmp_path / "own.x").touch()
        assert "is empty" in self.refused(name, tmp_path / "own.x")

    @pytest.mark.parametrize("name", ["csv", PARQUET, "npz", "tensors"])
    @pytest.mark.parametrize("content", [b"nonsense", bytes(range(256)), b"PK\x03\x04 broken zip"])
    def test_another_kind_of_file(self, name, content, tmp_path, cache):
        (tmp_path / "own.x").write_bytes(content)
        self.refused(name, tmp_path / "own.x")
        (tmp_path / "own.safetensors").write_bytes(content)
        self.refused("tensors", tmp_path / "own.safetensors")

    def test_words_among_the_features(self, file_of, tmp_path):
        text = file_of("csv").read_text().splitlines()
        text[4] = "1.0,red,2.0,cat"
        (tmp_path / "words.csv").write_text("\n".join(text))
        message = self.refused("csv", tmp_path / "words.csv")
        assert "line 5: 'red' in column 'b' is not a number" in message
        assert "labels is 'label'" in message

    def test_words_among_the_features_of_parquet(self, tmp_path, cache):
        file = write_parquet(tmp_path / "words.parquet", a=X[:, 0], b=WORDS, label=CODES)
        assert "column 'b' holds string, not numbers" in self.refused("parquet", file)

    def test_rows_of_another_length(self, file_of, tmp_path):
        (tmp_path / "cut.csv").write_text(file_of("csv").read_text()[:-12])
        assert "3 cells instead of 4" in self.refused("csv", tmp_path / "cut.csv")

    def test_names_without_rows(self, tmp_path, cache):
        file = write_csv(tmp_path / "own.csv", x=X[:0], labels=[])
        assert "has no rows" in self.refused("csv", file)

    def test_one_column(self, tmp_path, cache):
        (tmp_path / "own.csv").write_text("label\na\nb\n")
        assert "has 1 columns" in self.refused("csv", tmp_path / "own.csv")

    def test_sentences_as_labels(self, tmp_path, cache):
        labels = [f"a long sentence that describes sample {i} in all detail" for i in range(ROWS)]
        file = write_csv(tmp_path / "own.csv", labels=labels)
        assert "are longer than 39 characters" in self.refused("csv", file)

    def test_missing_values(self, tmp_path, cache):
        x = X.copy()
        x[3:5, 1] = np.nan
        message = "2 values are NaN, infinite or too large, in "
        assert message + "b" in self.refused("csv", write_csv(tmp_path / "own.csv", x=x))
        assert message + "x1" in self.refused("npz", write_npz(tmp_path / "o.npz", x=x, y=CODES))

    def test_missing_values_of_parquet(self, tmp_path, cache):
        file = write_parquet(tmp_path / "own.parquet", a=[None, *X[1:, 0]], label=CODES)
        assert "1 values of column 'a' are missing" in self.refused("parquet", file)

    def test_one_class(self, tmp_path, cache):
        file = write_csv(tmp_path / "own.csv", labels=["cat"] * ROWS)
        assert "all labels are cat; at least two classes are needed" in self.refused("csv", file)

    @pytest.mark.parametrize(
        ("arrays", "reason"),
        [
            ({"x": X, "y": CODES[:-1]}, "60 samples but 59 labels for train"),
            ({"x": X}, "has the arrays x; it needs x and y"),
            ({"samples": X, "labels": CODES}, "has the arrays samples, labels; it needs x and y"),
            ({"x_test": X, "y_test": CODES}, "it needs x and y"),
            ({"x": X, "y": np.eye(3)[CODES]}, r"convert one-hot labels with y.argmax(1)"),
            ({"x": X[:, 0], "y": CODES}, "neither a table (N, features) nor images"),
            ({"x": X[:0], "y": CODES[:0]}, "has no samples for train"),
            ({"x": X.astype(str), "y": CODES}, "are not numbers; convert them"),
            ({"x_train": X, "y_train": CODES, "x_test": X[:, 1:], "y_test": CODES}, "of shapes"),
        ],
    )
    def test_arrays_that_are_no_samples_and_labels(self, tmp_path, cache, arrays, reason):
        assert reason in self.refused("npz", write_npz(tmp_path / "own.npz", **arrays))

    def test_pickled_objects(self, tmp_path, cache):
        file = tmp_path / "own.npz"
        np.savez(file, x=X, y=np.array([{}] * ROWS, dtype=object))
        assert "is not an npz file of plain arrays; write it with" in self.refused("npz", file)
        torch.save({"x": torch.ones(3), "y": Exploit()}, tmp_path / "own.pt")
        assert "cannot be read as tensors" in self.refused("tensors", tmp_path / "own.pt")

    def test_tensors_without_names(self, tmp_path, cache):
        torch.save([torch.ones(3)] * 3, tmp_path / "own.pt")
        assert "not hold a dictionary of tensors" in self.refused("tensors", tmp_path / "own.pt")

    def test_standardised_pictures(self, tmp_path, cache):
        file = write_npz(tmp_path / "own.npz", x=PICTURES, y=CODES)
        assert "holds images" in self.refused("npz", file, standardize=True)

    def test_nothing_left_for_training(self, tmp_path, cache):
        file = write_npz(tmp_path / "own.npz", x=X[:2], y=CODES[:2])
        message = self.refused("npz", file, test=0.5, validation=0.9)
        assert "none of its 2 samples is left for training" in message

    def test_a_share_beyond_one(self, file_of):
        with pytest.raises(ValueError, match="test must be from 0 to below 1"):
            get_dataset("csv", "train", path=file_of("csv"), test=20)

    def test_parquet_without_pyarrow(self, tmp_path, cache, monkeypatch):
        (tmp_path / "own.parquet").write_bytes(b"PAR1")

        def absent(name, *args, **more):
            if name.startswith("pyarrow"):
                raise ImportError(name)
            return imported(name, *args, **more)

        imported = builtins.__import__
        monkeypatch.setattr(builtins, "__import__", absent)
        with pytest.raises(ImportError, match=r'pip install -c constraints.txt -e "\.\[tables\]"'):
            get_dataset("parquet", "train", path=tmp_path / "own.parquet")


class Exploit:
    """Would run code of the file's author if it were unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


# ------------------------------------------------------------------ what is said of a file


def images(*shape):
    return np.random.default_rng(0).integers(0, 256, (10, *shape), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(8, 6, 3), (2, 2, 1), (5, 5, 4)])
@pytest.mark.parametrize("name", ["npz", "tensors"])
def test_images_with_their_channels_last_are_recognised(shape, name, tmp_path, caplog):
    x, y = images(*shape), np.arange(10) % 2
    file = tmp_path / f"last.{'npz' if name == 'npz' else 'pt'}"
    if name == "npz":
        np.savez(file, x=x, y=y)
    else:
        torch.save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, file)
    with caplog.at_level("INFO"):
        info = get_dataset_info(name, path=file)
    assert info.image_size == (shape[2], *shape[:2])
    assert "have their channels last; they are used as (channels, height, width)" in caplog.text
    train = get_dataset(name, "train", path=file, test=0.0, validation=0.0).x
    assert sorted(train.flatten().tolist()) == sorted(x.flatten().tolist())
    assert {tuple(image.permute(1, 2, 0).flatten().tolist()) for image in train} == {
        tuple(image.flatten().tolist()) for image in x
    }


@pytest.mark.parametrize("shape", [(3, 8, 3), (3, 4, 3), (1, 3, 3), (3, 8, 8), (16, 8, 8)])
def test_images_whose_channels_may_be_first_stay_as_they_are(shape, tmp_path, caplog):
    np.savez(tmp_path / "first.npz", x=images(*shape), y=np.arange(10) % 2)
    assert get_dataset_info("npz", path=tmp_path / "first.npz").image_size == shape
    assert "channels last" not in caplog.text


def test_tables_that_are_standardised_say_so_in_every_run(tmp_path, caplog):
    file = tmp_path / "table.npz"
    np.savez(file, x=np.random.default_rng(0).random((10, 2)), y=np.arange(10) % 2)
    for name, options in {"first": {}, "cached": {}, "off": {"standardize": False}}.items():
        own_tables._log_once.cache_clear()  # as in a new process
        caplog.clear()
        with caplog.at_level("INFO"):
            get_dataset_info("npz", path=file, **options)
        said = f"{file}: the features are standardised with the mean" in caplog.text
        assert said == (name != "off")


def test_a_data_module_of_a_users_file_can_be_sent_to_other_processes(tmp_path):
    data = MaseDataModule("csv", custom_path=write_csv(tmp_path / "table.csv"))
    data.setup()
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.train_dataset.x, data.train_dataset.x)


class TestPixels:
    """Bytes of images reach a model as the numbers that it was trained on."""

    @pytest.fixture
    def images(self, tmp_path):
        x = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4), np.uint8)
        np.savez(tmp_path / "images.npz", x=x, y=np.arange(40) % 2)
        return tmp_path / "images.npz"

    def module(self, images, **options):
        made = MaseDataModule(
            "npz", batch_size=40, custom_path=images, num_workers=0, test=0, **options
        )
        made.setup("fit")
        return made

    def batch(self, module):
        split = module.train_dataset
        return split.x.double(), split.prepare(split.x)

    def test_they_are_scaled_shifted_and_divided(self, images):
        mean, std = [100.0, 110.0, 120.0], [50.0, 60.0, 70.0]
        made = self.module(images, mean=mean, std=std, scale=255)
        bytes_, x = self.batch(made)
        by_channel = [torch.tensor(each, dtype=torch.float64).view(3, 1, 1) for each in (mean, std)]
        assert torch.allclose(x.double(), (bytes_ - by_channel[0]) / by_channel[1], atol=1e-5)

    def test_one_number_is_for_all_channels(self, images):
        bytes_, x = self.batch(self.module(images, mean=0.5, std=0.25))
        assert torch.allclose(x.double(), (bytes_ / 255 - 0.5) / 0.25, atol=1e-5)

    def test_without_options_the_log_says_what_they_are(self, images, caplog):
        with caplog.at_level("INFO"):
            bytes_, x = self.batch(self.module(images))
        assert torch.equal(x, bytes_.float() / 255)
        assert "reach the model as numbers from 0 to 1; for a network that" in caplog.text

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"mean": [0.1, 0.2]}, "mean has 2 numbers, but images have 3 channels; give one"),
            ({"std": 0.0}, "std must be positive"),
            ({"scale": -1.0}, "scale"),
        ],
    )
    def test_wrong_ones_are_refused(self, images, options, said):
        with pytest.raises((ValueError, TypeError), match=said):
            self.module(images, **options)

    def test_a_table_has_none(self, tmp_path):
        np.savez(tmp_path / "t.npz", x=np.random.rand(40, 3), y=np.arange(40) % 2)
        with pytest.raises(ValueError, match="mean are for one array of images as bytes"):
            self.module(tmp_path / "t.npz", mean=0.5)
