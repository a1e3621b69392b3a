"""A library in the cache is loaded only if it is sound and ours; else it is built again."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
OTHER = 12345  # the number of another user

# loads a library that adds two numbers, or has it built
ADD = """
import logging, sys
from chop.system.libraries import load_library

logging.basicConfig(format="%(levelname)s %(message)s")
library = load_library("adder", sys.argv[1:], ["add"])
print(library.add(2, 3))
"""
PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fclose(fopen("%s", "w")); }
int add(int a, int b) { return 666; }
"""


class Cache:
    """A folder of its own for libraries, and processes that load one from it."""

    def __init__(self, folder):
        self.folder = folder
        self.source = folder / "adder.c"
        self.source.write_text("int add(int a, int b) { return a + b; }")

    @property
    def library(self):
        (file,) = self.folder.glob("cache/libraries/adder-*.so")
        return file

    def load(self):
        """The standard error of a process that loads the library, and adds two and three."""
        command = [sys.executable, "-c", ADD, COMPILER, "-shared", "-fPIC", str(self.source)]
        env = os.environ | {"MASE_CACHE": str(self.folder / "cache")}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "5\n"), done
        return done.stderr

    def replace(self, text):
        """Put another library in the place of the one that is there, named as if it were sound."""
        source, made = self.folder / "other.c", self.folder / "other.so"
        source.write_text(text)
        subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        checksum = hashlib.sha256(made.read_bytes()).hexdigest()[:32]
        target = self.library.with_name(f"adder-{checksum}.so")
        self.library.unlink()
        return made.rename(target)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    assert Cache(folder).load() == ""
    return folder


@pytest.fixture
def cache(built, tmp_path):
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    return Cache(tmp_path)


def test_a_sound_library_is_built_once(cache):
    before = cache.library.stat().st_mtime_ns
    assert cache.load() == ""
    assert cache.library.stat().st_mtime_ns == before
    assert [file.name for file in cache.library.parent.iterdir()] == [cache.library.name]


def halve(cache):
    cache.library.write_bytes(cache.library.read_bytes()[: cache.library.stat().st_size // 2])


def flip_a_bit(cache):
    content = bytearray(cache.library.read_bytes())
    content[len(content) // 2] ^= 1
    cache.library.write_bytes(content)


def plant(cache):
    return cache.replace(PLANTED % (cache.folder / "pwned"))


def link(cache):
    planted = plant(cache)
    planted.symlink_to(planted.rename(cache.folder / "elsewhere.so"))


def take_other_symbols(cache):
    cache.replace("int subtract(int a, int b) { return a - b; }")


DAMAGES = {
    "half": (halve, "its checksum differs from the one in its name"),
    "empty": (lambda cache: cache.library.write_bytes(b""), "its checksum differs"),
    "garbage": (lambda cache: cache.library.write_bytes(b"x" * 9999), "its checksum differs"),
    "a flipped bit": (flip_a_bit, "its checksum differs from the one in its name"),
    "other symbols": (take_other_symbols, "it does not define the function add"),
    "writable by all": (lambda c: c.library.chmod(0o666), "other users can write to it"),
    "writable by the group": (lambda c: c.library.chmod(0o664), "other users can write to it"),
    "a link": (link, "Too many levels of symbolic links"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_library_that_is_not_sound_is_built_again_with_one_warning(cache, damage):
    change, reason = DAMAGES[damage]
    change(cache)
    said = cache.load()
    assert said.count("WARNING") == 1
    assert "is rebuilt instead of loaded" in said
    assert reason in said
    assert not (cache.folder / "pwned").exists()
    assert cache.load() == "", "it is sound again"


@as_root
def test_a_library_of_another_user_is_not_loaded(cache):
    os.chown(plant(cache), OTHER, OTHER)
    assert "belongs to another user" in cache.load()
    assert not (cache.folder / "pwned").exists()
    assert cache.load() == ""


def test_a_folder_that_others_can_write_to_is_closed_and_its_libraries_are_built_again(cache):
    folder = cache.library.parent
    folder.chmod(0o777)
    assert "other users could write to" in cache.load()
    assert not folder.stat().st_mode & 0o022
    assert cache.load() == ""


def refused(cache):
    with pytest.raises(AssertionError) as error:
        cache.load()
    return str(error.value)


@as_root
def test_a_folder_of_another_user_is_not_used(cache):
    os.chown(cache.library.parent, OTHER, OTHER)
    sentence = "belongs to another user; set MASE_CACHE to a directory that only you can write to"
    assert sentence in refused(cache)


def test_a_folder_behind_a_link_is_not_used(cache):
    folder = cache.library.parent
    folder.rename(cache.folder / "elsewhere")
    folder.symlink_to(cache.folder / "elsewhere")
    assert "is a link or a file, not a directory; set MASE_CACHE" in refused(cache)


def test_a_wide_umask_makes_no_library_that_is_refused(tmp_path):
    before = os.umask(0)
    try:
        cache = Cache(tmp_path)
        assert cache.load() == ""
        assert cache.load() == ""
    finally:
        os.umask(before)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path):
    cache = Cache(tmp_path)
    cache.source.write_text("int add(int a, int b) { return c; }")
    assert "adder.c:1:" in refused(cache)
    assert list(tmp_path.glob("cache/libraries/*")) == []
