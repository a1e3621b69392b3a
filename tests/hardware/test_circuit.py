"""Codes travel through the ports of a circuit and come back, and its files are whole."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.hardware.circuit import MANIFEST, Circuit, Port
from chop.hardware.names import KEYWORDS, legal_name
from chop.hardware.source_check import check_sources

WIDTHS = st.integers(1, 63)


@given(WIDTHS, st.booleans(), st.integers(1, 7), st.permutations([0, 1, 2]), st.integers(0, 2**32))
def test_codes_survive_the_ports(width, signed, lanes, order, seed):
    port = Port("x", "x", (2, 3, 2), width, signed, lanes, tuple(order))
    draws = torch.Generator().manual_seed(seed)
    codes = torch.randint(-(2**63), 2**63 - 1, (5, *port.shape), generator=draws)
    codes = codes >> (64 - width) if signed else codes & (2**width - 1)
    beats = port.to_beats(codes)
    assert beats.shape == (5, port.beats, port.words)
    assert torch.equal(port.from_beats(beats), codes)


def test_the_first_code_is_in_the_lowest_bits():
    beats = Port("x", "x", (3,), 4, True, 2).to_beats(torch.tensor([[1, -2, 3]]))
    assert beats.tolist() == [[[0xE1], [0x03]]]


def circuit(**more):
    port = Port("data_in_0", "x", (2,), 4, True, 2)
    files = {"top.sv": "module top;\nendmodule\n"}
    ports = {"inputs": (port,), "outputs": (replace(port, name="data_out_0"),)}
    values = {"files": files, **ports, "clock_period": 5.0}
    return Circuit("top", "unrolled", "verilog", **{**values, "latency": 3, **more})


def test_a_circuit_is_read_as_it_was_written(tmp_path):
    written = circuit(layers={"fc1": "fc1"}, notes=("softmax was left out",))
    written.write(tmp_path)
    read = Circuit.read(tmp_path)
    assert read == written
    assert read.digest == written.digest


def test_another_circuit_replaces_its_files_but_not_those_of_others(tmp_path):
    circuit().write(tmp_path)
    circuit(files={"other.sv": "module other;\nendmodule\n"}).write(tmp_path)
    assert sorted(p.name for p in (tmp_path / "rtl").iterdir()) == [MANIFEST, "other.sv"]
    (tmp_path / "rtl" / "mine.sv").write_text("module mine;\nendmodule\n")
    with pytest.raises(FileExistsError, match=r"'mine\.sv'"):
        circuit().write(tmp_path)
    assert Circuit.read(tmp_path).files.keys() == {"other.sv"}


def test_a_changed_source_changes_the_digest(tmp_path):
    circuit().write(tmp_path)
    (tmp_path / "rtl" / "top.sv").write_text("module top; wire a; endmodule\n")
    assert Circuit.read(tmp_path).digest != circuit().digest


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"top": "top"}'])
def test_a_broken_manifest_is_one_sentence(tmp_path, text):
    circuit().write(tmp_path)
    (tmp_path / "rtl" / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match=r"delete .*rtl and emit it again with ch emit --load /"):
        Circuit.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_the_advice_for_a_broken_manifest_works(tmp_path, text):
    circuit(files={"old.sv": "module old;\nendmodule\n"}).write(tmp_path)
    (tmp_path / "rtl" / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match=r"delete .*rtl and emit it again with ch emit") as refused:
        circuit().write(tmp_path)
    assert str(refused.value).count("; ") == 1
    shutil.rmtree(tmp_path / "rtl")
    circuit().write(tmp_path)
    assert Circuit.read(tmp_path) == circuit()


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (
            lambda m: m.update(files={"../a.sv": ""}),
            r"name of a source file .* unlike '\.\./a\.sv'",
        ),
        (lambda m: m.update(files={"/etc/hosts": ""}), "name of a source file"),
        (lambda m: m.update(files={}), "it has no source files"),
        (lambda m: m.update(top="top; shell rm"), "name of a top module"),
        (lambda m: m["layers"].update(fc1="a b"), "name of a module"),
        (lambda m: m["inputs"][0].update(name="x; }"), r"inputs\.0: the name of a port"),
        (lambda m: m["inputs"][0].update(lanes="2"), r"inputs\.0\.lanes: .* valid integer"),
        (lambda m: m["inputs"][0].update(width=65), "the width of data_in_0 is from 1 to 64"),
        (lambda m: m["inputs"][0].update(order=[1]), "lists each of its 1 dimensions once"),
        (lambda m: m["outputs"][0].update(name="data_in_0"), "names of their own"),
        (lambda m: m.update(inputs=[]), "names of their own"),
        (lambda m: m.update(clock_period=float("nan")), "clock period is a number of ns above 0"),
        (lambda m: m.pop("latency"), "latency: Field required"),
        (lambda m: m.update(backend="other"), "backend: Input should be 'unrolled' or 'streaming'"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_with_the_place(tmp_path, change, law):
    rtl = circuit(layers={"fc1": "fc1"}).write(tmp_path)
    told = json.loads((rtl / MANIFEST).read_text())
    change(told)
    (rtl / MANIFEST).write_text(json.dumps(told))
    with pytest.raises(ValueError, match=rf"describe a circuit: .*{law}.*; emit it again with"):
        Circuit.read(tmp_path)
    circuit().write(tmp_path)  # in its place
    assert Circuit.read(tmp_path) == circuit()


def test_a_manifest_without_a_table_of_files_is_to_be_deleted(tmp_path):
    rtl = circuit().write(tmp_path)
    (rtl / MANIFEST).write_text(json.dumps({"files": ["top.sv"]}))
    law = r"its 'files' are not a table of names and checksums; delete .*rtl and emit it again with"
    with pytest.raises(ValueError, match=law):
        Circuit.read(tmp_path)


def test_a_source_that_is_not_text_is_named(tmp_path):
    rtl = circuit().write(tmp_path)
    (rtl / "top.sv").write_bytes(b"module \xff")
    with pytest.raises(ValueError, match=r"top\.sv is not UTF-8 text; emit it again with ch emit"):
        Circuit.read(tmp_path)
    circuit().write(tmp_path)
    assert Circuit.read(tmp_path) == circuit()


def test_a_source_that_is_a_link_is_refused(tmp_path):
    rtl = circuit().write(tmp_path)
    (rtl / "top.sv").rename(tmp_path / "elsewhere.sv")
    (rtl / "top.sv").symlink_to(tmp_path / "elsewhere.sv")
    with pytest.raises(ValueError, match=r"top\.sv is a link"):
        Circuit.read(tmp_path)


def test_a_memory_may_be_read_from_a_file_of_the_circuit_only():
    text = 'module top; initial $readmemh("rom.dat", memory); endmodule\n'
    check_sources({"top.sv": text, "rom.dat": "00\n"})
    with pytest.raises(ValueError, match=r"\$readmemh of a file that is not among its own"):
        check_sources({"top.sv": text})
    other = text.replace('"rom.dat"', '"rom.dat" == "" ? "rom.dat" : "/etc/passwd"')
    with pytest.raises(ValueError, match=r"\$readmemh of a file that is not among its own"):
        check_sources({"top.sv": other, "rom.dat": "00\n"})


def test_a_missing_source_is_named(tmp_path):
    circuit().write(tmp_path)
    (tmp_path / "rtl" / "top.sv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"has no top\.sv, .*; emit it again with ch emit --load"
    ):
        Circuit.read(tmp_path)


def test_a_missing_circuit_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="run ch emit first"):
        Circuit.read(tmp_path)


@given(st.lists(st.text(max_size=8) | st.sampled_from(sorted(KEYWORDS)), max_size=8))
def test_names_are_legal_and_unique(names):
    given_names: list[str] = []
    for name in names:
        given_names.append(legal_name(name, given_names))
    assert len({name.lower() for name in given_names}) == len(names)
    for name in given_names:
        assert name.isascii()
        assert name.isidentifier()
        assert name.lower() not in KEYWORDS
        assert "__" not in name
        assert name[0] != "_"
        assert name[-1] != "_"


def test_two_writers_at_once_leave_one_whole_circuit(tmp_path):
    made = [circuit(latency=n, files={f"{n}.sv": f"// {n}", "top.sv": f"// {n}"}) for n in (1, 2)]
    made[0].write(tmp_path)

    def write(each):
        for _ in range(10):
            each.write(tmp_path)
            assert Circuit.read(tmp_path) in made

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, made))
    assert [path.name for path in tmp_path.iterdir()] == ["rtl"]
