"""Caches: the results used last, and files that one process makes for all."""

import os
import shutil
import threading

from chop.caches import Lru, cached, forget_oldest
from chop.files import write_whole
from chop.private_cache import keep_folder, kept_folder


def test_the_result_used_least_lately_is_forgotten():
    known = Lru(2)
    for key in "ab":
        known.get_or(key, key.upper)
    assert known.get("a") == "A"
    known.put("c", "C")
    assert [known.get(key) for key in "abc"] == ["A", None, "C"]
    assert len(known) == 2
    known.clear()
    assert known.get_or("a", str, 1) == "1"


def test_weights_are_summed_and_the_last_result_is_always_kept():
    class Sized(Lru):
        def _weight(self, value):
            return len(value)

    known = Sized(4)
    known.put(1, "aaa")
    known.put(1, "a")  # in place of the other
    known.put(2, "bbb")
    assert known.get(1) == "a"
    known.put(3, "ccccc")
    assert len(known) == 1


def test_a_file_is_made_once_by_threads_that_need_it_together(tmp_path):
    file, made, start = tmp_path / "result", [], threading.Barrier(4)

    def make():
        made.append(1)
        write_whole(file, "made")
        return "made"

    def get():
        start.wait()
        assert cached(file, lambda: file.read_text() if file.exists() else None, make) == "made"

    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_files_and_directories_used_last_are_kept(tmp_path):
    for age, name in enumerate(["build-new", "build-old", "build-oldest", "other"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    forget_oldest(tmp_path, "build-*", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build-new", "other"]


def test_what_another_process_uses_again_meanwhile_is_kept(tmp_path, monkeypatch):
    for age, name in enumerate(["build-new", "build-old", "build-oldest"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    delete = shutil.rmtree

    def slowly(path, **options):
        os.utime(tmp_path / "build-oldest")
        delete(path, **options)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    forget_oldest(tmp_path, "build-*", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build-new", "build-oldest"]


def test_a_directory_is_used_when_it_is_found(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "program").write_text("x")
    kept = keep_folder(tmp_path / "made", tmp_path / "build-1")
    os.utime(kept, (1000, 1000))
    assert kept_folder(tmp_path / "build-1") == kept
    assert kept.stat().st_mtime > 1000
