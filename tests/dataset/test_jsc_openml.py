"""OpenML's jets: ARFF, CSV and Parquet give the same data, from a path or over the network."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
import torch

from chop.dataset import get_dataset, get_dataset_info
from chop.dataset import jsc_openml as module
from chop.dataset.text_tables import read_arff

WRITERS = {".arff": "write_arff", ".csv": "write_csv", ".parquet": "write_parquet"}


@pytest.fixture(scope="module")
def files(layouts, jets, tmp_path_factory):
    """The same jets in every kind of file that needs no further package."""
    folder = tmp_path_factory.mktemp("openml")
    return {
        kind: getattr(layouts, WRITERS[kind])(folder / f"jets{kind}", jets)
        for kind in (".arff", ".csv")
    }


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_every_kind_of_file_gives_the_same_jets(layouts, jets, files, tmp_path, cache, kind):
    file = getattr(layouts, WRITERS[kind])(tmp_path / f"jets{kind}", jets)
    one, two = (get_dataset("jsc-openml", "train", path=path) for path in (files[".arff"], file))
    torch.testing.assert_close(one.x, two.x, rtol=1e-6, atol=1e-6)
    assert torch.equal(one.y, two.y)


@pytest.mark.parametrize("kind", WRITERS)
def test_columns_may_come_in_any_order(layouts, jets, tmp_path, cache, kind):
    write, columns = getattr(layouts, WRITERS[kind]), ["class", *reversed(layouts.FEATURES)]
    usual = write(tmp_path / f"jets{kind}", jets)
    other = write(tmp_path / f"other{kind}", jets, columns=columns)
    one, two = (get_dataset("jsc-openml", "test", path=path) for path in (usual, other))
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)


def test_it_is_the_same_jets_as_jsc_in_another_order_of_classes(layouts, jets, tmp_path, cache):
    hdf5 = layouts.write_cernbox(tmp_path / "jets.h5", jets)
    arff = layouts.write_arff(tmp_path / "jets.arff", jets)
    jsc = get_dataset("jsc", "test", path=hdf5)
    openml = get_dataset("jsc_openml", "test", path=arff)
    torch.testing.assert_close(jsc.x, openml.x, rtol=1e-5, atol=1e-5)
    names = get_dataset_info("jsc").class_names, get_dataset_info("jsc-openml").class_names
    assert names == (tuple("gqwzt"), tuple("gqtwz"))
    assert [names[0][c] for c in jsc.y] == [names[1][c] for c in openml.y]


def test_genuine_rows_are_read_to_the_last_bit(layouts, jets, files):
    if not jets.genuine:
        pytest.skip(f"the genuine rows are not at {layouts.GENUINE}")
    table = module.read_openml(files[".arff"])
    assert np.array_equal(table.x.astype(np.float32), jets.x)
    assert np.array_equal(table.y, jets.y)


def test_legacy_val_is_that_of_jsc(files, cache):
    file = files[".arff"]
    train, val = (
        get_dataset("jsc-openml", s, path=file, legacy_val=True) for s in ("train", "validation")
    )
    assert torch.equal(train.x, val.x)
    assert len(train) == 800


def test_arff_may_be_written_in_many_ways(tmp_path):
    file = tmp_path / "odd.arff"
    file.write_text(
        "% a comment\r\n@relation x\r\n@ATTRIBUTE \"b c\" numeric\r\n@attribute 'a'   REAL\r\n"
        "@Attribute class {'g', 'q'}\r\n\r\n@DATA\r\n% another\r\n1, 2, 'g'\r\n\r\n-1e-3,+4,q\r\n"
    )
    table = read_arff(file, "class")
    assert table.features == ("b c", "a")
    assert table.x.tolist() == [[1, 2], [-0.001, 4]]
    assert table.y.tolist() == [0, 1]
    assert table.classes == ("g", "q")


class TestDownload:
    """OpenML says where the file is and what its checksum is."""

    @pytest.fixture
    def openml(self, files, monkeypatch):
        content = files[".arff"].read_bytes()
        facts = {"url": "http://there/x.arff", "md5_checksum": hashlib.md5(content).hexdigest()}
        asked: dict[str, str | None] = {}

        def fetch(url, target, *, checksum=None):
            asked[url] = checksum
            target.parent.mkdir(parents=True, exist_ok=True)
            if url == module.ABOUT:
                target.write_text(json.dumps({"data_set_description": facts}))
            else:
                shutil.copy(files[".arff"], target)
            return target

        monkeypatch.setattr(module, "download", fetch)
        return asked, facts

    def test_the_file_comes_from_where_openml_says(self, openml, cache):
        asked, facts = openml
        for split in ("train", "test"):
            assert len(get_dataset("jsc-openml", split)) > 0
        assert asked == {module.ABOUT: None, facts["url"]: f"md5:{facts['md5_checksum']}"}
        assert (cache / "jsc-openml" / module.FILE).exists()

    @pytest.mark.parametrize("nested", [False, True])
    def test_an_answer_without_an_address_is_refused(self, openml, cache, monkeypatch, nested):
        openml[1].pop("url")
        if nested:

            def fetch(url, target, **more):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("[" * 100_000)
                return target

            monkeypatch.setattr(module, "download", fetch)
        with pytest.raises(ValueError, match=r"does not give the address of the data.*save it as"):
            get_dataset("jsc-openml", "train")
        assert not list((cache / "jsc-openml").glob("about*"))


class TestRefusals:
    """Whatever is wrong with a file is said in one sentence, with the path and the fix."""

    def refused(self, path):
        with pytest.raises((ValueError, FileNotFoundError)) as refusal:
            get_dataset("jsc-openml", "train", path=path)
        message = str(refusal.value)
        assert path.name in message
        assert "\n" not in message
        return message

    def test_another_kind_of_file(self, tmp_path, cache):
        (tmp_path / "jets.xls").write_text("x")
        said = "is not a supported file; use one of .arff, .csv, .parquet"
        assert said in self.refused(tmp_path / "jets.xls")

    def test_two_files_in_a_folder(self, files, cache):
        assert "has 2 such files" in self.refused(files[".csv"].parent)

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("zlogz", "zlog", "lacks the columns zlogz; it has zlog, c1"),
            ("'class'", "'clas'", r"no column 'class' of labels; did you mean 'clas'\?"),
            (",g\n", ",h\n", "'h' is not a jet class; use g, q, t, w, z"),
            ("@DATA", "DATA", "no line @DATA"),
            ("@DATA\n", "@DATA\n?", r"line 23: '\?.* in column 'zlogz' is not a number"),
        ],
    )
    def test_an_altered_file(self, files, tmp_path, cache, old, new, said):
        text = files[".arff"].read_text()
        assert old in text
        (tmp_path / "altered.arff").write_text(text.replace(old, new, 1))
        assert re.search(said, self.refused(tmp_path / "altered.arff"))

    def test_a_truncated_file(self, files, tmp_path, cache):
        content, file = files[".arff"].read_text(), tmp_path / "cut.arff"
        file.write_text(content[: len(content) // 2])
        assert "instead of 17; the file is damaged or truncated" in self.refused(file)

    def test_a_truncated_parquet_file(self, layouts, jets, tmp_path, cache):
        whole = layouts.write_parquet(tmp_path / "whole.parquet", jets)
        (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:5000])
        assert "cannot be read as Parquet" in self.refused(tmp_path / "cut.parquet")
