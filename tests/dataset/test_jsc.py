"""The labs' jets: files in the layout of CERNBox, read as pandas and scikit-learn would."""

import shutil

import h5py
import numpy as np
import pytest
import torch

from chop.dataset import MaseDataModule, get_dataset, get_dataset_info
from chop.dataset import jsc as jsc_module
from chop.dataset.jsc import CLASSES, COLUMNS, FILE, LABELS, TABLE

TOGETHER = ["train", "validation"]


@pytest.fixture(scope="module")
def file(layouts, jets, tmp_path_factory):
    return layouts.write_cernbox(tmp_path_factory.mktemp("jsc") / "jets.h5", jets)


@pytest.fixture
def the_labs_way(package):
    """Train-and-validation and test data of a file as the labs' recipe makes them."""

    def read(file):
        with h5py.File(file) as h5:
            frame = package("pandas").DataFrame(h5[TABLE][:])
        frame = frame[[*COLUMNS, *LABELS]].drop_duplicates()
        x, y = frame[list(COLUMNS)].to_numpy(np.float64), frame[list(LABELS)].to_numpy().argmax(1)
        split = package("sklearn.model_selection").train_test_split
        x, x_test, y, y_test = split(x, y, test_size=0.2, random_state=42)
        scaler = package("sklearn.preprocessing").StandardScaler().fit(x)
        return scaler.transform(x), y, scaler.transform(x_test), y_test

    return read


def with_duplicates(layouts, jets):
    again = np.concatenate([np.arange(len(jets.y)), np.arange(0, len(jets.y), 10)])
    return layouts.Jets(jets.x[again], jets.y[again], jets.genuine)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_the_test_split_is_that_of_the_labs(the_labs_way, layouts, jets, tmp_path, cache, dtype):
    file = tmp_path / "jets.h5"
    layouts.write_cernbox(file, with_duplicates(layouts, jets), dtype=dtype)
    _, _, x_test, y_test = the_labs_way(file)
    for split in ("test", "pred"):
        mine = get_dataset("jsc", split, path=file)
        # float32 of the same double up to the order of a sum
        np.testing.assert_allclose(mine.x.numpy(), x_test, rtol=1e-6, atol=1e-7)
        assert np.array_equal(mine.y, y_test)


def test_legacy_val_gives_all_that_is_not_test_twice(the_labs_way, file, cache):
    x, y, _, _ = the_labs_way(file)
    for split in TOGETHER:
        mine = get_dataset("jsc", split, path=file, legacy_val=True)
        assert len(mine) == len(y)
        order, theirs = np.lexsort(mine.x.numpy().T), np.lexsort(x.astype(np.float32).T)
        np.testing.assert_allclose(mine.x.numpy()[order], x[theirs], rtol=1e-6, atol=1e-7)
        assert np.array_equal(mine.y[torch.from_numpy(order)], y[theirs])


def test_validation_is_a_tenth_of_what_is_not_test(file, cache):
    train, validation = (get_dataset("jsc", split, path=file) for split in TOGETHER)
    both = get_dataset("jsc", "train", path=file, legacy_val=True)
    assert len(validation) == -(-len(both) // 10)
    assert torch.equal(torch.cat([train.x, validation.x]), both.x)
    # the scaler was fitted on both
    assert both.x.double().mean(0).abs().max() < 1e-6
    assert (both.x.double().std(0, correction=0) - 1).abs().max() < 1e-6


def test_genuine_rows_are_read_to_the_last_bit(layouts, jets, file):
    if not jets.genuine:
        pytest.skip(f"the genuine rows are not at {layouts.GENUINE}")
    table = jsc_module.read_cernbox(file)
    assert np.array_equal(table.x, jets.x)
    assert [CLASSES[code] for code in table.y] == [layouts.CLASSES[code] for code in jets.y]


def test_a_table_inside_a_group_of_pytables_is_read(layouts, jets, file, tmp_path, cache):
    other = layouts.write_cernbox(tmp_path / "tables.h5", jets, table=f"{TABLE}/table")
    one, two = (get_dataset("jsc", "train", path=path) for path in (file, other))
    assert torch.equal(one.x, two.x)
    assert one.fingerprint == two.fingerprint


def test_a_folder_with_the_file_serves(file, tmp_path, cache):
    shutil.copy(file, tmp_path / FILE)
    (tmp_path / "other.h5").write_text("not this one")
    assert len(get_dataset("jsc", "test", path=tmp_path)) > 0
    assert len(get_dataset("jsc", "test", path=str(file))) > 0


def test_the_info_names_features_and_classes_in_the_labs_order():
    info = get_dataset_info("jsc")
    assert info.num_features == 16
    assert info.num_classes == 5
    assert info.class_names == ("g", "q", "w", "z", "t")
    assert info.feature_names[0] == "j_zlogz"
    assert info.physical_data_point_classification


def test_it_is_downloaded_once_into_the_cache(file, cache, monkeypatch):
    def fetch(url, target):
        if not target.exists():
            asked.append(url)
            target.parent.mkdir(parents=True)
            shutil.copy(file, target)
        return target

    asked: list[str] = []
    monkeypatch.setattr(jsc_module, "download", fetch)
    data = MaseDataModule("jsc", batch_size=64)
    data.prepare_data()
    data.setup()
    assert asked == [jsc_module.URL]
    assert (cache / "jsc" / FILE).exists()
    assert len(data.train_dataset) + len(data.val_dataset) + len(data.test_dataset) <= 1000


def without(column):
    return lambda records: records[[n for n in records.dtype.names if n != column]].copy()


def with_words(column):
    return lambda records: np.zeros(
        9, [(name, "S4" if name == column else kind) for name, kind in records.dtype.descr]
    )


class TestRefusals:
    """Whatever is wrong with a file is said in one sentence, with the path and the fix."""

    def refused(self, path):
        with pytest.raises((ValueError, FileNotFoundError)) as refusal:
            get_dataset("jsc", "train", path=path)
        message = str(refusal.value)
        assert str(path) in message
        assert "\n" not in message
        return message

    def changed(self, layouts, jets, tmp_path, **columns):
        records = layouts.as_records(jets)
        for name, value in columns.items():
            records[name][7] = value
        return self.written(tmp_path, records)

    def written(self, tmp_path, records, table=TABLE):
        file = tmp_path / "jets.h5"
        with h5py.File(file, "w") as h5:
            h5[table] = records
        return file

    def test_a_folder_without_it(self, tmp_path, cache):
        assert f"has no {FILE}" in self.refused(tmp_path)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "does not exist; `path` must be"),
            ("", "is empty"),
            ("<html>log in</html>", "is damaged or not an HDF5 file"),
        ],
    )
    def test_another_kind_of_file_or_none(self, tmp_path, cache, content, said):
        if content is not None:
            (tmp_path / "jets.h5").write_text(content)
        assert said in self.refused(tmp_path / "jets.h5")

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
    def test_a_truncated_file(self, file, tmp_path, cache, share):
        content = file.read_bytes()
        (tmp_path / "jets.h5").write_bytes(content[: int(len(content) * share)])
        assert "download it again (delete it if" in self.refused(tmp_path / "jets.h5")

    def test_another_table(self, layouts, jets, tmp_path, cache):
        file = self.written(tmp_path, layouts.as_records(jets), table="t_allpar")
        assert "no table 't_allpar_new'; the nearest is 't_allpar'" in self.refused(file)

    @pytest.mark.parametrize(
        ("altered", "said"),
        [
            (lambda records: np.zeros((5, 3)), "lacks the columns j_zlogz"),
            (without("j_mass_mmdt"), "lacks the columns j_mass_mmdt; it has j_pt"),
            (with_words("j_zlogz"), "not all numbers"),
            (lambda records: records[:0], "has no rows"),
            (lambda records: records[records["j_z"] == 0], "samples is of class z"),
        ],
        ids=["no table", "no column", "words", "no rows", "no class"],
    )
    def test_a_table_of_another_kind(self, layouts, jets, tmp_path, cache, altered, said):
        file = self.written(tmp_path, altered(layouts.as_records(jets)))
        assert said in self.refused(file)

    def test_missing_values(self, layouts, jets, tmp_path, cache):
        file = self.changed(layouts, jets, tmp_path, j_zlogz=np.nan, j_mass_mmdt=np.inf)
        assert "2 values are NaN, infinite or too large, in j_zlogz, j_mass" in self.refused(file)

    @pytest.mark.parametrize("labels", [(0, 0, 0, 0, 0), (1, 1, 0, 0, 0), (0.5, 0, 0, 0, 0)])
    def test_labels_that_are_not_one_hot(self, layouts, jets, tmp_path, cache, labels):
        columns = dict(zip(LABELS, labels, strict=True))
        file = self.changed(layouts, jets, tmp_path, **columns)
        assert "1 of 1000 jets do not have exactly one class" in self.refused(file)

    def test_an_unknown_option(self, file, cache):
        with pytest.raises(ValueError, match="no option 'legacy'; did you mean 'legacy_val'"):
            get_dataset("jsc", "train", path=file, legacy=True)
