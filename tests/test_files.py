"""Folders are replaced as a whole, whatever happens meanwhile."""

import os
import signal
import subprocess
import sys
import time

import pytest
from torch import nn

from chop import files
from chop.files import replaced_folder, restore_folder
from chop.ir import MaseGraph

# replaces a folder, and is killed between the two renames
KILLED = """
import os, signal, sys
from chop.files import replaced_folder

rename = os.rename

def deadly(source, target):
    if str(source).endswith(".part"):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

os.rename = deadly
with replaced_folder(sys.argv[1], ["a", "graph.json", *sys.argv[2:]]) as part:
    (part / "a").write_text("new")
"""


def write(folder, text):
    with replaced_folder(folder, ["a"]) as part:
        (part / "a").write_text(text)


def kill_a_save_of(folder, *others):
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), *others], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not folder.exists()


@pytest.fixture
def killed(tmp_path):
    """A folder whose replacement was killed at the worst moment: it is not there."""
    folder = tmp_path / "mine [1]"
    write(folder, "old")
    kill_a_save_of(folder)
    return folder


def test_what_was_there_comes_back(killed):
    restore_folder(killed)
    assert (killed / "a").read_text() == "old"


def test_the_next_save_goes_through_and_leaves_nothing_behind(killed):
    write(killed, "newer")
    assert (killed / "a").read_text() == "newer"
    assert [path.name for path in killed.parent.iterdir()] == [killed.name]


def test_a_next_save_that_fails_leaves_what_was_there(killed):
    with pytest.raises(ValueError, match="no"), replaced_folder(killed, ["a"]):
        raise ValueError("no")
    assert (killed / "a").read_text() == "old"


def test_a_saved_graph_is_found_again_when_it_is_loaded(tmp_path):
    graph = MaseGraph(nn.Sequential(nn.Linear(2, 2)))
    folder = graph.export(tmp_path / "graph")
    kill_a_save_of(folder, *(file.name for file in folder.iterdir()))
    assert str(MaseGraph.from_checkpoint(folder).model) == str(graph.model)


def moved_aside(folder, process):
    old = folder.with_name(f".{folder.name}.{process}.old")
    os.rename(folder, old)
    return old


def test_a_swap_under_way_is_left_alone(tmp_path):
    write(tmp_path / "f", "old")
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        old = moved_aside(tmp_path / "f", sleeper.pid)
        restore_folder(tmp_path / "f")
        assert old.exists()
        assert not (tmp_path / "f").exists()
    finally:
        sleeper.communicate(b"\n")
    restore_folder(tmp_path / "f")
    assert (tmp_path / "f" / "a").read_text() == "old"


def test_a_number_that_was_given_to_another_process_hides_nothing_for_long(tmp_path, monkeypatch):
    write(tmp_path / "f", "old")
    moved_aside(tmp_path / "f", os.getppid())
    later = time.time() + files.SWAP_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    restore_folder(tmp_path / "f")
    assert (tmp_path / "f" / "a").read_text() == "old"


def test_our_own_number_from_an_earlier_life_hides_nothing(tmp_path):
    write(tmp_path / "f", "old")
    moved_aside(tmp_path / "f", os.getpid())
    write(tmp_path / "f", "new")
    assert (tmp_path / "f" / "a").read_text() == "new"


def test_folders_of_others_stay(tmp_path):
    others = (".f.x.old", ".g.1.old", "f.1.old", ".f.2.99999999.old", ".f.2.99999999.part")
    for name in others:  # those in the middle may belong to a folder called f.2
        (tmp_path / name).mkdir()
    restore_folder(tmp_path / "f")
    restore_folder(tmp_path / "nowhere" / "f")
    assert not (tmp_path / "f").exists()
    write(tmp_path / "f", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"f", *others}


def test_what_a_save_was_deleting_when_it_was_killed_does_not_come_back(tmp_path, monkeypatch):
    write(tmp_path / "f", "old")
    monkeypatch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
    write(tmp_path / "f", "new")
    monkeypatch.undo()
    (tmp_path / "f" / "a").unlink()
    (tmp_path / "f").rmdir()
    restore_folder(tmp_path / "f")
    assert not (tmp_path / "f").exists()
