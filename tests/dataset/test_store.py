"""PreparedData data is made once, mapped afterwards, and made anew when it should be."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from chop.dataset import TensorSplit, dataset
from chop.dataset.base import DATASETS, MaseDatasetInfo, get_dataset
from chop.dataset.data_module import MaseDataModule
from chop.dataset.store import PreparedData, locked, prepared
from chop.dataset.tensors import fingerprint
from chop.system.files import cache_folder

ROWS = {"train": 5, "validation": 2, "test": 3}


class Builder:
    """Counts how often the data was made."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        x = torch.arange(20.0).view(10, 2)
        return PreparedData(x, torch.arange(10), ROWS, features=("a", "b"), classes=("no", "yes"))


@pytest.fixture
def build():
    return Builder()


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.txt"
    file.write_text("content")
    return file


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "set"


def the_file(folder):
    (file,) = folder.glob("prepared-*.safetensors")
    return file


def test_it_is_made_once_and_is_the_same_afterwards(folder, source, build):
    first = prepared(folder, source, build, version=1)
    second = prepared(folder, source, build, version=1)
    assert build.times == 1
    for data in (first, second):
        assert torch.equal(data.x, build().x)
        assert torch.equal(data.y, build().y)
        assert (data.rows, data.features, data.classes) == (ROWS, ("a", "b"), ("no", "yes"))
    assert [file.name[0] for file in folder.iterdir() if file.suffix == ".new"] == []


def test_splits_are_slices_of_one_block(folder, source, build):
    data = prepared(folder, source, build, version=1)
    spans = {name: data.split(name).y.tolist() for name in ("train", "validation", "test", "pred")}
    tested = {"test": [7, 8, 9], "pred": [7, 8, 9]}
    assert spans == {"train": [0, 1, 2, 3, 4], "validation": [5, 6]} | tested
    assert data.split("train").x.data_ptr() == data.x.data_ptr()
    for name in ("train", "validation"):
        assert data.split(name, legacy_val=True).y.tolist() == list(range(7))


def test_fingerprints_are_stored_and_are_those_of_the_tensors(folder, source, build, monkeypatch):
    data = prepared(folder, source, build, version=1)
    for split in ("train", "validation", "test"):
        for legacy in (False, True):
            part = data.split(split, legacy_val=legacy)
            assert part._fingerprint == fingerprint(part.x, part.y) == part.fingerprint
    assert len({data.split(s).fingerprint for s in ("train", "validation", "test")}) == 3


def test_a_fingerprint_is_computed_where_none_was_stored():
    x, y = torch.randn(4, 3), torch.arange(4)
    split = TensorSplit(x, y)
    assert split.fingerprint == TensorSplit(x.clone(), y.clone()).fingerprint
    assert split.fingerprint.startswith("sha256:")
    assert split.fingerprint != TensorSplit(x + 1, y).fingerprint
    assert split.fingerprint != TensorSplit(x.view(4, 1, 3), y).fingerprint
    assert split.fingerprint == TensorSplit(x.T.contiguous().T, y).fingerprint
    assert split.to(torch.device("cpu")).fingerprint == split.fingerprint


@pytest.mark.parametrize("change", ["size", "time", "version", "renew"])
def test_a_change_makes_it_anew_in_the_same_place(folder, source, build, change):
    prepared(folder, source, build, version=1)
    if change == "size":
        source.write_text("more content")
    if change == "time":
        os.utime(source, ns=(1, 1))
    version = 2 if change == "version" else 1
    for renew in (False, False, change == "renew"):
        prepared(folder, source, build, version=version, renew=renew)
    assert build.times == 2
    the_file(folder)


def test_any_of_several_sources_may_change(folder, source, build):
    other = source.with_name("other.txt")
    other.write_text("labels")
    prepared(folder, [source, other], build, version=1)
    prepared(folder, [source, other], build, version=1)
    assert build.times == 1
    other.write_text("other labels")
    prepared(folder, [source, other], build, version=1)
    assert build.times == 2
    the_file(folder)


def test_other_options_and_other_sources_lie_side_by_side(folder, source, build):
    other = source.with_name("other.txt")
    other.write_text("content")
    for _ in range(2):
        prepared(folder, source, build, version=1)
        prepared(folder, source, build, version=1, options={"label": "z"})
        prepared(folder, other, build, version=1)
    assert build.times == 3


def one_bit_flipped(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def with_facts(file, facts):
    """The file with another text for what it says about its content."""
    with safe_open(file, framework="pt") as tensors:
        header = tensors.metadata()
    save_file(load_file(file), file, metadata=header | {"facts": facts})


OTHER_KINDS = '{"rows": 1, "features": 2, "classes": 3, "fingerprints": 4}'
DAMAGES = {
    "emptied": lambda file: file.write_bytes(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-5]),
    "header gone": lambda file: file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:]),
    "one bit flipped": one_bit_flipped,
    "header of another": lambda file: save_file(load_file(file), file),
    "facts nested deep": lambda file: with_facts(file, "[" * 100_000),
    "facts of other kinds": lambda file: with_facts(file, OTHER_KINDS),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_mended(folder, source, build, damage):
    prepared(folder, source, build, version=1)
    DAMAGES[damage](the_file(folder))
    for _ in range(2):
        data = prepared(folder, source, build, version=1)
        assert torch.equal(data.x, build().x)
        build.times -= 1
    assert build.times == 2


def test_a_copy_of_the_cache_serves(folder, source, build):
    prepared(folder, source, build, version=1)
    file = the_file(folder)
    content = file.read_bytes()
    file.write_bytes(content)  # as `cp` does: the same content, another time
    prepared(folder, source, build, version=1)
    assert build.times == 1
    assert file.stat().st_mtime_ns == source.stat().st_mtime_ns  # so that it is read but once


def test_the_caller_may_write_to_its_tensors_without_changing_the_cache(folder, source, build):
    prepared(folder, source, build, version=1).x.zero_()
    assert torch.equal(prepared(folder, source, build, version=1).x, build().x)


def test_a_failure_leaves_nothing_behind(folder, source):
    def broken():
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        prepared(folder, source, broken, version=1)
    assert not list(folder.glob("prepared-*"))


def test_a_full_disk_leaves_the_old_file(folder, source, build, monkeypatch):
    import safetensors.torch

    def full(_tensors, file, **_more):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    prepared(folder, source, build, version=1)
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(OSError, match=r"cannot write to .*No space left.*MASE_CACHE"):
            prepared(folder, source, build, version=1, renew=True)
    prepared(folder, source, build, version=1)
    assert build.times == 2
    assert not list(folder.glob(".*.part"))


def test_a_cache_that_cannot_be_written_is_refused(tmp_path, source, build):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(OSError, match=r"cannot write to .*set MASE_CACHE"):
        prepared(tmp_path / "cache" / "set", source, build, version=1)


def test_what_is_there_needs_no_lock(folder, source, build, monkeypatch):
    prepared(folder, source, build, version=1)
    monkeypatch.setattr("chop.dataset.store.locked", None)
    prepared(folder, source, build, version=1)


def test_many_at_once_make_it_once(folder, source, build):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: prepared(folder, source, build, version=1), range(8)))
    assert build.times == 1


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    lock = tmp_path / ".file.lock"
    code = f"import fcntl, os; fcntl.flock(open({str(lock)!r}, 'a'), fcntl.LOCK_EX); os.abort()"
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    with locked(tmp_path / "file"):
        pass


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("MASE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("MASE_CACHE")
    assert cache_folder().parts[-2:] == (".cache", "mase")


class TestRenew:
    """`renew` reaches sets that have it, once, and is dropped for the others."""

    @pytest.fixture
    def seen(self, monkeypatch):
        seen: list[bool] = []

        @dataset(MaseDatasetInfo(name="renewed", num_features=1, num_classes=2))
        def renewed(split, *, renew: bool = False):
            seen.append(renew)
            return TensorSplit(torch.zeros(2, 1), torch.arange(2))

        yield seen
        DATASETS._items.pop("renewed")

    @pytest.mark.parametrize("prepare", [True, False])
    def test_only_the_first_load_renews(self, seen, prepare):
        data = MaseDataModule("renewed", load_from_cache_file=False)
        if prepare:
            data.prepare_data()
        data.setup()
        assert seen == [True] + [False] * (len(seen) - 1)

    def test_a_set_without_a_cache_does_not_mind(self):
        assert len(get_dataset("toy_tiny", "train", renew=True)) == 10_240
