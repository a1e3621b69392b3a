"""Files and folders are written whole or not at all, whatever happens meanwhile."""

import json
import os
import stat
import subprocess
import sys
import threading
import time

import pytest
from torch import nn

from chop.ir import MaseGraph
from chop.system import files
from chop.system.files import (
    read_json,
    replaced_folder,
    restore_folder,
    whole_file,
    write_safetensors,
    write_whole,
)

# writes a file or a folder, and at the worst moment reports that and waits
HALFWAY = """
import os, sys
from chop.system import files

def halfway(source, target):
    if ".part" in str(source):
        print("halfway", flush=True)
        sys.stdin.read()
        raise OSError("told to go on")
    rename(source, target)

rename, os.rename, os.replace = os.rename, halfway, halfway
kind, target, *others = sys.argv[1:]
if kind == "file":
    files.write_whole(target, "new")
with files.replaced_folder(target, ["a", "graph.json", *others]) as part:
    (part / "a").write_text("new")
"""


class Writer:
    """A process that has written all, but not put it in its place."""

    def __init__(self, kind, target, *others):
        command = [sys.executable, "-c", HALFWAY, kind, str(target), *others]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert self.process.stdout.readline() == b"halfway\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def kill_a_write_of(kind, target, *others):
    with Writer(kind, target, *others):
        pass


def write(folder, text):
    with replaced_folder(folder, ["a"]) as part:
        (part / "a").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def of_another_process(path, old, new):
    """The same leftover, as if the process with the number `new` had left it."""
    renamed = path.with_name(path.name.replace(f".{old}.", f".{new}."))
    assert renamed != path
    return path.rename(renamed)


def of_another_machine(path):
    """The same leftover, as if it came from another machine that shares the disk."""
    machine = path.name.split(".")[-4]
    return path.rename(path.with_name(path.name.replace(machine, "0" * len(machine))))


class TestAFile:
    def test_that_a_killed_process_was_writing_is_what_it_was(self, tmp_path):
        file = write_whole(tmp_path / "f.json", "old")
        kill_a_write_of("file", file)
        assert file.read_text() == "old"
        assert len(names(tmp_path)) == 2, "the part is still beside it"
        assert write_whole(file, "newer").read_text() == "newer"
        assert names(tmp_path) == ["f.json"]

    def test_of_a_process_that_still_writes_is_not_taken_away(self, tmp_path):
        file = write_whole(tmp_path / "f.json", "old")
        with Writer("file", file):
            write_whole(file, "newer")
            assert len(names(tmp_path)) == 2
        write_whole(file, "newest")
        assert names(tmp_path) == ["f.json"]

    def test_of_a_process_on_another_machine_is_left_for_a_day(self, tmp_path, monkeypatch):
        kill_a_write_of("file", tmp_path / "f")
        (part,) = tmp_path.iterdir()
        part = of_another_machine(part)
        write_whole(tmp_path / "f", "new")
        assert part.exists()
        monkeypatch.setattr(files, "ABANDONED_SECONDS", -1)
        write_whole(tmp_path / "f", "new")
        assert names(tmp_path) == ["f"]

    def test_of_an_earlier_process_with_our_number_is_removed(self, tmp_path):
        with Writer("file", tmp_path / "f") as writer:
            number = writer.process.pid
        (part,) = tmp_path.iterdir()
        of_another_process(part, number, os.getpid())
        write_whole(tmp_path / "f", "new")
        assert names(tmp_path) == ["f"]

    def test_with_a_longer_name_keeps_its_part(self, tmp_path):
        kill_a_write_of("file", tmp_path / "f.json")
        (part,) = tmp_path.iterdir()
        write_whole(tmp_path / "f", "new")
        assert part.exists()

    def test_is_untouched_by_an_error(self, tmp_path):
        file = write_whole(tmp_path / "f", "old")
        with pytest.raises(ZeroDivisionError), whole_file(file) as part:
            part.write_text(f"half {1 / 0}")
        assert file.read_text() == "old"
        assert names(tmp_path) == ["f"]

    def test_is_always_complete_for_those_who_read_it(self, tmp_path):
        file = write_whole(tmp_path / "f", "0" * 10_000)
        over = threading.Event()

        def keep_writing(digit):
            while not over.is_set():
                write_whole(file, digit * 10_000)

        writers = [threading.Thread(target=keep_writing, args=(digit,)) for digit in "12"]
        for writer in writers:
            writer.start()
        seen = {file.read_text() for _ in range(200)}
        over.set()
        for writer in writers:
            writer.join()
        assert {(len(text), len(set(text))) for text in seen} == {(10_000, 1)}
        assert names(tmp_path) == ["f"]

    def test_has_the_mode_that_umask_gives(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_whole(tmp_path / "text", "new")
            with whole_file(tmp_path / "tensors") as part:
                write_safetensors({"x": nn.Linear(2, 2).weight.data}, part)
        finally:
            os.umask(before)
        modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("text", "tensors")}
        assert modes == {0o640}

    def test_behind_a_link_is_written_and_the_link_stays(self, tmp_path):
        (tmp_path / "there").mkdir()
        file = write_whole(tmp_path / "there" / "f", "old")
        (tmp_path / "link").symlink_to(file)
        write_whole(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
        assert file.read_text() == "new"

    def test_that_is_a_pipe_is_written_directly(self, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        heard = []
        listener = threading.Thread(target=lambda: heard.append(pipe.read_text()))
        listener.start()
        write_whole(pipe, "news")
        listener.join()
        assert heard == ["news"]
        assert stat.S_ISFIFO(pipe.stat().st_mode)

    def test_with_the_longest_name_can_be_written(self, tmp_path):
        longest = "ä" * 127
        assert write_whole(tmp_path / longest, "new").read_text() == "new"
        assert names(tmp_path) == [longest]

    def test_cannot_take_the_place_of_a_folder(self, tmp_path):
        with pytest.raises(IsADirectoryError, match="is a directory; give a file in it"):
            write_whole(tmp_path, "new")

    def test_on_a_full_disk_is_named_and_nothing_is_left(self, small_disk):
        disk = small_disk(64)
        file = write_whole(disk / "f", "old")
        with pytest.raises(OSError, match=rf"cannot write {file}: .*; before is safe"):
            write_whole(file, b"x" * 1_000_000, advice="before is safe")
        assert file.read_text() == "old"
        assert names(disk) == ["f"]

    def test_of_tensors_on_a_full_disk_is_named_and_nothing_is_left(self, small_disk):
        disk, big = small_disk(64), {"x": nn.Linear(500, 500).weight.data}
        with (
            pytest.raises(OSError, match=r"cannot write .*f: .*; nothing was changed"),
            whole_file(disk / "f") as part,
        ):
            write_safetensors(big, part)
        assert names(disk) == []


DAMAGED = {
    "": "it is empty",
    " \n": "it is empty",
    '{"a": 1, "b"': "it is cut off at line 1, column 13",
    '{"a": "tex': "it is cut off at line 1, column 7",
    '{"a": 1}}': "Extra data at line 1, column 9",
    "[1, 2]": "its content is of type list, not an object",
    "3": "its content is of type int, not an object",
    "[" * 100_000: "it is nested too deeply",
    '{"a": ' + "9" * 10_000 + "}": "Exceeds the limit",
    b'{"a": "\xff"}': "byte 7 is not UTF-8 text",
    b"\x00" * 100: "Expecting value at line 1, column 1",
}


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_json_is_named_with_the_reason_and_the_advice(tmp_path, content):
    file = tmp_path / "f.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match="is damaged") as error:
        read_json(file, advice="delete it")
    message = str(error.value)
    assert message.startswith(f"{file} is damaged ({DAMAGED[content]}")
    assert message.endswith("; delete it")
    assert "\n" not in message


def test_json_that_is_whole_is_read(tmp_path):
    content = {"a": [1, 2.5, None, "ä"], "b": {}}
    assert read_json(write_whole(tmp_path / "f", json.dumps(content)), advice="") == content


@pytest.fixture
def killed(tmp_path):
    """A folder whose replacement was killed at the worst moment: it is not there."""
    folder = tmp_path / "mine [1]"
    write(folder, "old")
    kill_a_write_of("folder", folder)
    assert not folder.exists()
    return folder


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
    kill_a_write_of("folder", folder, *names(folder))
    assert not folder.exists()
    assert str(MaseGraph.from_checkpoint(folder).model) == str(graph.model)


def moved_aside(folder):
    (old,) = folder.parent.glob(".*.old")
    return old


def test_a_swap_under_way_is_left_alone_and_undone_when_it_was_killed(tmp_path):
    write(tmp_path / "f", "old")
    with Writer("folder", tmp_path / "f"):
        restore_folder(tmp_path / "f")
        assert moved_aside(tmp_path / "f").exists()
        assert not (tmp_path / "f").exists()
    restore_folder(tmp_path / "f")
    assert (tmp_path / "f" / "a").read_text() == "old"


@pytest.fixture
def halfway(tmp_path):
    """What a killed process has moved aside, and the number of that process."""
    write(tmp_path / "f", "old")
    with Writer("folder", tmp_path / "f") as writer:
        pass
    return moved_aside(tmp_path / "f"), writer.process.pid


@pytest.mark.parametrize("other", ["process", "machine"])
def test_what_another_process_or_machine_moved_aside_comes_back_after_a_while(
    halfway, tmp_path, monkeypatch, other
):
    if other == "process":  # one that has got the number of the process that was killed
        of_another_process(*halfway, os.getppid())
    else:
        of_another_machine(halfway[0])
    restore_folder(tmp_path / "f")
    assert not (tmp_path / "f").exists()
    later = time.time() + files.SWAP_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    restore_folder(tmp_path / "f")
    assert (tmp_path / "f" / "a").read_text() == "old"


def test_our_own_number_from_an_earlier_life_hides_nothing(halfway, tmp_path):
    of_another_process(*halfway, os.getpid())
    write(tmp_path / "f", "new")
    assert (tmp_path / "f" / "a").read_text() == "new"


def test_folders_of_others_stay(tmp_path):
    for other in ("f.2", "g"):
        write(tmp_path / other, "old")
        kill_a_write_of("folder", tmp_path / other)
    others = names(tmp_path)
    restore_folder(tmp_path / "f")
    restore_folder(tmp_path / "nowhere" / "f")
    assert not (tmp_path / "f").exists()
    write(tmp_path / "f", "new")
    assert set(names(tmp_path)) == {"f", *others}


def test_what_a_save_was_deleting_when_it_was_killed_does_not_come_back(tmp_path, monkeypatch):
    write(tmp_path / "f", "old")
    monkeypatch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
    write(tmp_path / "f", "new")
    monkeypatch.undo()
    (tmp_path / "f" / "a").unlink()
    (tmp_path / "f").rmdir()
    restore_folder(tmp_path / "f")
    assert not (tmp_path / "f").exists()
