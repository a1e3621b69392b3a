"""Circuits and tools that take no time."""

import json
import stat

import pytest

from .netlists import ADDER, NETLIST, circuit


@pytest.fixture
def adder():
    """A registered addition of two numbers of 4 bits."""
    return circuit({"top.sv": ADDER}, layers={"fc1": "fc1"})


@pytest.fixture
def fake_yosys(tmp_path, monkeypatch):
    """Return a function that puts a program in the place of yosys, with `does` as its work.

    By default it writes a netlist and adds a line to the file `runs`, whose path is returned.
    """
    folder, runs = tmp_path / "bin", tmp_path / "runs"
    folder.mkdir()
    (tmp_path / "netlist").write_text(json.dumps(NETLIST))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(does=f"cp '{tmp_path / 'netlist'}' netlist.json", *, version="0.99", name="yosys"):
        script = f"""\
#!/bin/sh
case "$1" in
  -V|--version) echo "Yosys {version} (git sha1 0)"; exit 0;;
  -p) exit 0;;
esac
echo run >> '{runs}'
{does}
"""
        file = folder / name
        file.write_text(script)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return runs

    return make
