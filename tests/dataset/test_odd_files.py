"""Whatever the user's file holds, the answer is one sentence with its path, or samples."""

import io
import random
import zipfile

import numpy as np
import pytest
import torch

from chop.dataset import MaseDataModule, get_dataset

X = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
Y = np.arange(30) % 3


@pytest.fixture(autouse=True)
def _cache(cache):
    """Nothing is kept from one test to the next."""


def kind(array):
    return f"{array.dtype}{array.shape}"


def refused(name, path, said=None):
    with pytest.raises(ValueError, match=said) as error:
        get_dataset(name, "train", path=path)
    text = str(error.value)
    assert path.name in text
    assert "\n" not in text
    return text


def npz(path, **members):
    """An npz file with members as they are: bytes, or arrays."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if not isinstance(content, bytes):
                buffer = io.BytesIO()
                np.save(buffer, content)
                content, name = buffer.getvalue(), f"{name}.npy"
            archive.writestr(name, content)
    return path


def npy(header):
    """A file of numpy's with that text as its header."""
    padded = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + X.tobytes()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (30, 3), ",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (30, 3",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 30}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3)}",
        "{'descr': 7, 'fortran_order': False, 'shape': (30, 3)}",
        "{'descr': '<f4'}",
        "[",
        "'''",
        "__import__('os').system('true')",
        "\x00",
        "(" * 110,
    ],
)
def test_a_header_that_numpy_cannot_read(tmp_path, header):
    (tmp_path / "a.npz").touch()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy(header))
    refused("npz", tmp_path / "a.npz")


def test_bytes_with_a_header_of_numpys_are_read(tmp_path):
    with zipfile.ZipFile(npz(tmp_path / "a.npz", y=Y), "a") as archive:
        archive.writestr("x.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (30, 3)}"))
    assert get_dataset("npz", "train", path=tmp_path / "a.npz").x.shape[1] == 3


def test_flipped_bits_are_one_sentence_or_samples(tmp_path):
    whole, chance = npz(tmp_path / "a.npz", x=X, y=Y).read_bytes(), random.Random(3)
    said = []
    for number in range(60):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file = tmp_path / f"{number}.npz"
        file.write_bytes(content)
        try:
            get_dataset("npz", "train", path=file)
        except ValueError as error:
            said.append((file.name, str(error)))
    assert len(said) > 10
    assert all(name in sentence for name, sentence in said)


def test_a_member_that_is_no_array(tmp_path):
    file = npz(tmp_path / "a.npz", x=b"12", y=Y)
    assert "has the arrays y; it needs x and y" in refused("npz", file)
    file = npz(tmp_path / "b.npz", x=X, y=Y, readme=b"three classes")
    assert len(get_dataset("npz", "train", path=file)) == 21


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("x", "X", "y"), "both 'x' and 'X'; keep one of them"),
        (("x", "y", "Y"), "both 'y' and 'Y'"),
        (("x", "x_train", "y"), "both 'x' and 'x_train'"),
        (("x", "y", "x_val", "x_valid", "y_val"), "both 'x_val' and 'x_valid'"),
    ],
)
def test_two_arrays_for_one_thing(tmp_path, names, said):
    arrays = {name: X if name[0] in "xX" else Y for name in names}
    assert said in refused("npz", npz(tmp_path / "a.npz", **arrays))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.save(tensors, tmp_path / "a.pt")
    assert said in refused("tensors", tmp_path / "a.pt")


@pytest.mark.parametrize(
    "x",
    [
        np.float32(1.0),
        np.zeros((30, 3), np.complex64),
        np.zeros((30, 3), "datetime64[s]"),
        np.zeros(30, [("a", "f4")]),
        np.zeros((30, 0), np.float32),
        np.zeros((0, 3), np.float32),
        np.full((30, 3), b"a"),
    ],
    ids=kind,
)
def test_samples_of_other_kinds(tmp_path, x):
    refused("npz", npz(tmp_path / "a.npz", x=x, y=Y))


@pytest.mark.parametrize(
    "y",
    [
        np.int64(1),
        np.zeros(30, [("a", "f4")]),
        np.zeros(30, "datetime64[s]"),
        np.full(30, 1 + 2j),
        np.where(Y == 0, np.nan, Y),
        np.where(Y == 0, np.inf, Y),
    ],
    ids=kind,
)
def test_labels_of_other_kinds(tmp_path, y):
    refused("npz", npz(tmp_path / "a.npz", x=X, y=y))


def test_a_parameter_that_learns_serves(tmp_path):
    learns = torch.nn.Parameter(torch.from_numpy(X))
    torch.save({"x": learns, "y": torch.from_numpy(Y)}, tmp_path / "a.pt")
    assert len(get_dataset("tensors", "train", path=tmp_path / "a.pt")) == 21


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x: x.to_sparse(), "x is sparse"),
        (lambda x: x.to("meta"), "x has no values"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "x is quantised"),
        (lambda x: torch.nested.nested_tensor([x, x[:2]]), "x is nested"),
        (lambda x: x.to(torch.complex64).conj(), "samples of type complex64 are not numbers"),
        (lambda x: {"a": x}, "not hold a dictionary of tensors"),
    ],
    ids=["sparse", "meta", "quantised", "nested", "complex", "table"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of what it calls a prototype
def test_tensors_that_are_no_plain_numbers(tmp_path, made, said):
    torch.save({"x": made(torch.from_numpy(X)), "y": torch.from_numpy(Y)}, tmp_path / "a.pt")
    assert said in refused("tensors", tmp_path / "a.pt")


def test_half_and_quarter_precision_serve(tmp_path):
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        tensors = {"x": torch.from_numpy(X).to(dtype), "y": torch.from_numpy(Y)}
        torch.save(tensors, tmp_path / f"{dtype}.pt")
        assert get_dataset("tensors", "train", path=tmp_path / f"{dtype}.pt").x.shape[1] == 3


def test_a_pickle_is_refused_without_advice_to_run_it(tmp_path):
    file = tmp_path / "a.pt"
    torch.save({"x": print}, file)
    with pytest.raises(ValueError, match="would run code") as error:
        get_dataset("tensors", "train", path=file)
    assert "weights_only" not in str(error.value)


def test_any_text_file_as_tensors(tmp_path):
    for first in range(0, 256, 3):
        file = tmp_path / f"{first}.pt"
        file.write_bytes(bytes([first]) + b"oot:x:0:0:root:/root:/bin/sh\nbin:x:1:1::/:/bin/sh\n")
        refused("tensors", file, "cannot be read as tensors")


# --- labels that are not there


@pytest.mark.parametrize("cell", ["", " ", '""', "''"])
def test_a_row_without_a_label_is_refused_with_its_line(tmp_path, cell):
    rows = [f"{i},{i * i},{'ab'[i % 2]}" for i in range(20)]
    rows[6] = f"1,2,{cell}"
    (tmp_path / "a.csv").write_text("\n".join(["u,v,kind", "", *rows]))
    said = refused("csv", tmp_path / "a.csv")
    assert "line 9: no label in column 'kind'; fill it in, or remove the row" in said


def test_a_row_without_a_label_is_found_in_every_block(tmp_path, monkeypatch):
    monkeypatch.setattr("chop.dataset.text_tables.BLOCK", 7)
    rows = [f"{i},{'ab'[i % 2]}" for i in range(40)]
    rows[30] = "1,"
    (tmp_path / "a.csv").write_text("\n".join(["u,kind", *rows]))
    assert "line 32: no label" in refused("csv", tmp_path / "a.csv")


def test_an_array_with_an_empty_label_is_refused(tmp_path):
    labels = np.array(["cat", "dog", ""])[Y]
    assert "sample 2 has no label" in refused("npz", npz(tmp_path / "a.npz", x=X, y=labels))


# --- options that are ours to give


@pytest.mark.parametrize(
    ("key", "advice"), [("cache", "$MASE_CACHE"), ("renew", "--disable-dataset-cache")]
)
@pytest.mark.parametrize("name", ["npz", "jsc-sim", "toy_tiny"])
def test_what_no_list_of_options_has_is_refused(here, tmp_path, name, key, advice):
    npz(tmp_path / "a.npz", x=X, y=Y)
    (tmp_path / "a.toml").write_text(f"[dataset_args]\n{key} = 'elsewhere'\n")
    flags = ("--data-path", tmp_path / "a.npz") if name == "npz" else ()
    flags += ("--project-dir", tmp_path / "out")
    code, _, said = here("train", "toy", name, "--config", tmp_path / "a.toml", *flags)
    assert code == 2
    sentence = said.splitlines()[-1]
    assert f"data set '{name}' has no option '{key}'" in sentence
    assert advice in sentence
    assert not (tmp_path / "elsewhere").exists()


def test_a_data_module_of_a_notebook_may_name_a_cache(tmp_path):
    npz(tmp_path / "a.npz", x=X, y=Y)
    data = MaseDataModule("npz", custom_path=tmp_path / "a.npz", cache=tmp_path / "there")
    data.setup("fit")
    assert (tmp_path / "there").is_dir()
