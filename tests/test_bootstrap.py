"""`./ch` and `make` set themselves up: once, alone or together, and again when something broke.

A tiny project stands in for the clone. Its interpreter and its processes are real; only `pip` is a
stand-in, which keeps a log, needs no network, and fails or waits when a test asks for it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are POSIX scripts")

PYPROJECT = '[build-system]\nrequires = ["builder"]\n[project]\nname = "mase"\n'

COMMAND_LINE = """
import json, os, sys
import corelib

def main():
    if sys.argv[1:2] == ["exit"]:
        sys.exit(int(sys.argv[2]))
    stdin = sys.stdin.read() if sys.argv[1:2] == ["read"] else None
    facts = {"argv": sys.argv[1:], "prefix": sys.prefix, "chop": __file__, "stdin": stdin}
    facts["called"] = os.environ.get("MASE_COMMAND")
    print(json.dumps(facts))
"""

PIP = """
import sys, sysconfig, time
from pathlib import Path

def distribution(name, metadata=""):
    info = site / (name + "-1.dist-info")
    info.mkdir(exist_ok=True)
    head = "Metadata-Version: 2.1\\nName: " + name + "\\nVersion: 1\\n"
    (info / "METADATA").write_text(head + metadata)
    (info / "RECORD").touch()

project, site = Path.cwd(), Path(sysconfig.get_path("purelib"))
print("Collecting what", sys.executable, "needs")
with open(project / "pip.log", "a") as log:
    print(*sys.argv[1:], file=log)
while (project / "pip.hold").exists():
    time.sleep(0.01)
if (project / "pip.fail").exists():
    sys.exit("ERROR: No space left on device")
if "-e" in sys.argv:
    if not (site / "corelib-1.dist-info").exists():  # like pip: what has metadata is there
        (site / "corelib").mkdir(exist_ok=True)
        (site / "corelib" / "__init__.py").touch()
        distribution("corelib")
    needs = 'Requires-Dist: corelib>=1\\n'
    for extra, library in (("dev", "devlib"), ("test-all", "testlib")):
        needs += 'Requires-Dist: ' + library + '; extra == "' + extra + '"\\n'
        if extra in sys.argv[-1].strip(".[]").split(","):
            distribution(library)
    (site / "mase.pth").write_text(str(project))
    distribution("mase", needs)
"""

PYTHON = f"""#!{sys.executable}
import os, pathlib, sys, venv
if "venv" not in sys.argv:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
folder = pathlib.Path(sys.argv[-1])
venv.EnvBuilder(symlinks=True).create(folder)
pip = next(folder.glob("lib/python*/site-packages")) / "pip"
pip.mkdir()
(pip / "__init__.py").touch()
(pip / "__main__.py").write_text({PIP!r})
"""

DISGUISED = f"""#!{sys.executable}
import runpy, sys
{{disguise}}
sys.argv = sys.argv[1:]
sys.path[0] = ""
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Project:
    """A clone in miniature, and ways to call it."""

    def __init__(self, root, outside):
        self.root, self.venv, self.stamp = root, root / ".venv", root / ".venv/mase-setup.json"
        self.env = {"PATH": f"{outside}/bin:/usr/bin:/bin", "HOME": str(outside)}
        self.env["PYTHON"] = script(outside / "bin/maker", PYTHON)
        script(outside / "bin/python3", f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')

    def start(self, *args, command=None, cwd=None, **env):
        """Start `./ch` with these arguments, in a process group of its own."""
        return subprocess.Popen(
            [*(command or [self.root / "ch"]), *args],
            cwd=cwd or self.root,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # a run in the background hands on SIGINT as ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def ch(self, *args, expect=0, **options):
        """Call `./ch` and return what it wrote to stdout, as JSON, and to stderr."""
        with ended(self.start(*args, **options)) as process:
            stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == expect, stderr
        return json.loads(stdout or "null"), stderr

    def piped(self):
        """Call `./ch read` with the word "in" on its stdin."""
        command = [self.root / "ch", "read"]
        done = subprocess.run(command, env=self.env, input=b"in", capture_output=True)
        return json.loads(done.stdout)

    def pip_calls(self):
        """What pip was asked to install, one line a call, since the last question."""
        log = self.root / "pip.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line.rpartition(" constraints.txt ")[2] for line in lines]

    @contextlib.contextmanager
    def held_in_pip(self, *args):
        """Start `./ch`, whose pip waits until `release_pip` is called."""
        (self.root / "pip.hold").touch()
        with ended(self.start(*args)) as process:
            self._wait_for_pip()
            yield process

    def release_pip(self):
        (self.root / "pip.hold").unlink()

    def _wait_for_pip(self):
        log = self.root / "pip.log"
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text()):
            assert time.monotonic() < deadline, "pip was never called"
            time.sleep(0.01)


def script(path, text):
    """Write an executable script and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@contextlib.contextmanager
def ended(process):
    """Leave neither the process nor what it started behind."""
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


FULL_SETUP = ["builder", "--no-build-isolation -e ."]


def made_project(root, outside):
    """A clone in miniature at `root`, which nothing has been called in yet."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CLONE / "scripts", root / "scripts", ignore=ignored)
    shutil.copy(CLONE / "ch", root / "ch")
    (root / "chop/system").mkdir(parents=True)
    for folder in ("chop", "chop/system"):
        (root / folder / "__init__.py").touch()
    for file in ("__main__.py", "system/processes.py"):
        shutil.copy(CLONE / "chop" / file, root / "chop" / file)
    (root / "chop/cli.py").write_text(COMMAND_LINE)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "constraints.txt").write_text("corelib==1\n")
    return Project(root, outside)


@pytest.fixture
def project(tmp_path):
    return made_project(tmp_path / "a clone", tmp_path / "outside")


@pytest.fixture(scope="module")
def set_up_once(tmp_path_factory):
    """A project whose `.venv` is set up, and a copy of it."""
    folder = tmp_path_factory.mktemp("ready")
    project = made_project(folder / "clones" / "a clone", folder / "outside")
    project.ch()
    project.pip_calls()
    shutil.copytree(folder / "clones", folder / "copy", symlinks=True)
    return project, folder


@pytest.fixture
def ready(set_up_once):
    """A project whose `.venv` is set up, in the place where that was done."""
    project, folder = set_up_once
    shutil.rmtree(folder / "clones")
    shutil.copytree(folder / "copy", folder / "clones", symlinks=True)
    return project


def environment_with_mase(project, folder, extra=""):
    """An environment of the user, where the project is installed by hand; its Python."""
    maker = project.env["PYTHON"]
    subprocess.run([maker, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    command = [python, "-m", "pip", "-e", f".{extra}"]
    subprocess.run(command, cwd=project.root, check=True, stdout=subprocess.DEVNULL)
    project.pip_calls()
    return python


# ------------------------------------------------------------------- the usual days


def test_first_call_sets_up_and_runs(project):
    said, stderr = project.ch("list", "--json")
    assert said["argv"] == ["list", "--json"]
    assert said["prefix"] == str(project.venv)
    assert project.pip_calls() == FULL_SETUP
    assert stderr.startswith("ch: setting up .venv, which happens once")
    assert "Collecting" in stderr, "pip's output belongs on stderr"


def test_second_call_starts_at_once(ready):
    _, stderr = ready.ch()
    assert ready.pip_calls() == []
    assert stderr == ""


@pytest.mark.slow
def test_arguments_streams_and_exit_codes_pass_through(ready):
    odd = ["two words", "", "--flag=a b", "*", "'", "ü", "--repair", "--extra"]
    assert ready.ch(*odd)[0]["argv"] == odd
    ready.ch("exit", "7", expect=7)
    assert ready.piped()["stdin"] == "in"


def test_hints_name_the_command_as_it_was_typed(ready):
    typed = subprocess.run(
        "./ch", shell=True, cwd=ready.root, env=ready.env, capture_output=True, check=True
    )
    assert json.loads(typed.stdout)["called"] == "./ch"


@pytest.mark.slow
def test_first_call_leaves_stdin_to_the_command(project):
    assert project.piped()["stdin"] == "in"


def test_signals_reach_the_command(ready):
    (ready.root / "chop/cli.py").write_text(
        "import time\ndef main():\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    with ended(ready.start()) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM


@pytest.mark.slow
def test_call_through_a_symlink_from_another_folder(project, tmp_path):
    link = tmp_path / "bin/ch"
    link.parent.mkdir()
    link.symlink_to(project.root / "ch")
    said, _ = project.ch("x", command=[link], cwd=tmp_path)
    assert said["chop"] == str(project.root / "chop/cli.py")
    said, _ = project.ch("x", command=["python3", "./ch"])
    assert said["prefix"] == str(project.venv)


def test_a_chop_folder_in_the_current_folder_is_not_run(ready, tmp_path):
    (tmp_path / "chop").mkdir()
    (tmp_path / "chop/__init__.py").write_text("raise SystemExit('wrong chop')")
    assert ready.ch(cwd=tmp_path)[0]["chop"] == str(ready.root / "chop/cli.py")


# ------------------------------------------------------------------- extras and changes


def make_test(project, *extras, python="python3"):
    """What `make test` calls, with these extras besides dev."""
    words = [word for extra in ("dev", *extras) for word in ("--extra", extra)]
    return [python, project.root / "scripts/bootstrap.py", *words, "-m", "chop"]


@pytest.mark.slow
def test_an_extra_is_added_without_starting_over(ready):
    (ready.venv / "still here").touch()
    ready.ch(command=make_test(ready))
    assert ready.pip_calls() == ["builder", "--no-build-isolation -e .[dev]"]
    ready.ch(command=make_test(ready))
    ready.ch()
    assert ready.pip_calls() == []
    assert (ready.venv / "still here").exists()


@pytest.mark.slow
def test_extras_stay_installed_for_those_who_ask_for_fewer(ready):
    ready.ch(command=make_test(ready))
    ready.pip_calls()
    ready.ch(command=make_test(ready, "test-all"))
    assert ready.pip_calls() == ["builder", "--no-build-isolation -e .[dev,test-all]"]
    for extras in ((), ("test-all",), ()):
        ready.ch(command=make_test(ready, *extras))
    assert ready.pip_calls() == []
    (ready.root / "constraints.txt").write_text("corelib==2\n")
    ready.ch()
    assert ready.pip_calls()[-1].endswith(".[dev,test-all]"), "they survive a change"


@pytest.mark.slow
@pytest.mark.parametrize("file", ["constraints.txt", "pyproject.toml"])
def test_changed_pins_are_installed(ready, file):
    with (ready.root / file).open("a") as handle:
        handle.write("# changed\n")
    _, stderr = ready.ch()
    assert ready.pip_calls() == FULL_SETUP
    assert stderr.startswith("ch: bringing .venv up to date")
    ready.ch()
    assert ready.pip_calls() == []


@pytest.mark.slow
def test_a_moved_clone_is_set_up_anew(ready):
    elsewhere = ready.root.rename(ready.root.with_name("moved"))
    said, stderr = ready.ch(command=[elsewhere / "ch"], cwd=elsewhere)
    assert said["prefix"] == str(elsewhere / ".venv")
    assert said["chop"] == str(elsewhere / "chop/cli.py")
    assert "setting up .venv" in stderr


def test_wrong_use_of_the_script_is_refused(project):
    _, stderr = project.ch(command=make_test(project)[:4], expect=2)
    assert "scripts/bootstrap.py [--repair]" in stderr
    assert not project.venv.exists()


# ------------------------------------------------------------------- damage


@pytest.mark.slow
def test_failing_pip_gives_one_sentence_and_no_stamp(project):
    (project.root / "pip.fail").touch()
    _, stderr = project.ch(expect=1)
    assert stderr.splitlines()[-1].startswith("ch: the set-up of .venv failed: pip stopped")
    assert "Traceback" not in stderr
    assert not project.stamp.exists()
    (project.root / "pip.fail").unlink()
    project.ch()


@pytest.mark.slow
def test_killed_set_up_is_finished_by_the_next_call(project):
    with project.held_in_pip() as process:
        os.killpg(process.pid, signal.SIGKILL)
    assert not project.stamp.exists()
    project.release_pip()
    project.pip_calls()
    project.ch()
    assert project.pip_calls() == FULL_SETUP


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_set_up_takes_pip_with_it(project, number):
    with project.held_in_pip() as process:
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
        project.release_pip()
        assert "Traceback" not in process.stderr.read()
    assert not project.stamp.exists()
    _, stderr = project.ch()
    assert "waiting" not in stderr, "a pip that still ran would hold the lock"


@pytest.mark.slow
def test_half_installed_package_is_made_whole(ready):
    (record,) = ready.venv.glob("lib/*/site-packages/corelib-1.dist-info/RECORD")
    record.unlink()
    ready.stamp.unlink()
    ready.ch()
    assert ready.pip_calls() == FULL_SETUP + FULL_SETUP, "pip alone takes it for complete"


@pytest.mark.slow
def test_dangling_interpreter_is_replaced(ready):
    for python in (ready.venv / "bin").glob("python*"):
        python.unlink()
        python.symlink_to("/nowhere/python3")
    said, stderr = ready.ch()
    assert said["prefix"] == str(ready.venv)
    assert "setting up .venv" in stderr


@pytest.mark.slow
@pytest.mark.parametrize("names", ["corelib", "corelib*", "mase*"])
def test_lost_package_is_brought_back(ready, names):
    for lost in ready.venv.glob(f"lib/*/site-packages/{names}"):
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    ready.ch()
    assert ready.pip_calls()[:2] == FULL_SETUP
    ready.ch()
    assert ready.pip_calls() == []


@pytest.mark.slow
def test_broken_core_dependency_is_repaired_from_within(ready):
    (module,) = ready.venv.glob("lib/*/site-packages/corelib/__init__.py")
    module.write_text("import corelib.gone")
    said, _ = ready.ch("two words")
    assert said["argv"] == ["two words"]
    assert ready.pip_calls() == FULL_SETUP + FULL_SETUP, "pip alone takes it for complete"


@pytest.mark.slow
def test_repair_is_tried_only_once(ready):
    (ready.root / "chop/cli.py").write_text("import corelib.never_there")
    _, stderr = ready.ch(expect=1)
    assert "corelib.never_there" in stderr
    assert ready.pip_calls() == FULL_SETUP


@pytest.mark.slow
def test_own_import_errors_are_no_reason_for_repair(ready):
    (ready.root / "chop/cli.py").write_text("import chop.misspelt")
    _, stderr = ready.ch(expect=1)
    assert "chop.misspelt" in stderr
    assert ready.pip_calls() == []


@pytest.mark.slow
def test_file_in_the_place_of_the_environment_is_kept_aside(project):
    project.venv.write_text("mine")
    project.ch()
    (kept,) = project.root.glob(".venv.old-*/.venv")
    assert kept.read_text() == "mine"


@pytest.mark.slow
def test_unusable_environment_of_the_user_is_kept_aside(project):
    venv.create(project.venv)  # without pip
    (project.venv / "mine").touch()
    project.ch()
    assert list(project.root.glob(".venv.old-*/mine"))
    assert not (project.venv / "mine").exists()


def test_usable_environment_of_the_user_is_taken(project):
    subprocess.run([project.env["PYTHON"], "-m", "venv", project.venv], check=True)
    (project.venv / "mine").touch()
    said, stderr = project.ch()
    assert said["prefix"] == str(project.venv)
    assert (project.venv / "mine").exists()
    assert "up to date" in stderr


@pytest.mark.slow
def test_place_where_nothing_can_be_made_is_refused_in_one_sentence(project):
    (project.root / "file").touch()
    project.venv.symlink_to(project.root / "file" / "venv")
    _, stderr = project.ch(expect=1)
    assert stderr.count("\n") == 1
    assert "Not a directory" in stderr


# ------------------------------------------------------------------- two at a time


@pytest.mark.slow
def test_two_first_calls_share_one_set_up(project):
    with project.held_in_pip("a") as first, ended(project.start("b")) as second:
        assert "waiting for another call" in second.stderr.readline()
        project.release_pip()
        for process, name in [(first, "a"), (second, "b")]:
            stdout, stderr = process.communicate(timeout=60)
            assert process.returncode == 0, stderr
            assert json.loads(stdout)["argv"] == [name]
    assert project.pip_calls() == FULL_SETUP


@pytest.mark.slow
def test_pip_that_outlives_its_caller_is_waited_for(project):
    with project.held_in_pip() as first:
        first.kill()
        first.wait()
        with ended(project.start()) as second:
            assert "waiting for another call" in second.stderr.readline()
            project.release_pip()
            _, stderr = second.communicate(timeout=60)
            assert second.returncode == 0, stderr
        first.communicate()


# ------------------------------------------------------------------- where it runs


def test_installed_environment_is_used_as_it_is(project, tmp_path):
    python = environment_with_mase(project, tmp_path / "env")
    said, stderr = project.ch(command=[python, project.root / "ch"])
    assert said["prefix"] == str(tmp_path / "env")
    assert stderr == ""
    assert not project.venv.exists()


@pytest.mark.slow
def test_tests_run_in_an_installed_environment_only_if_it_has_their_tools(project, tmp_path):
    with_tools = environment_with_mase(project, tmp_path / "with tools", "[dev]")
    said, _ = project.ch(command=make_test(project, python=with_tools))
    assert said["prefix"] == str(tmp_path / "with tools")
    assert not project.venv.exists()
    without_tools = environment_with_mase(project, tmp_path / "without tools")
    said, _ = project.ch(command=make_test(project, python=without_tools))
    assert said["prefix"] == str(project.venv)


@pytest.mark.slow
def test_installation_of_another_clone_is_not_run(project, tmp_path):
    python = environment_with_mase(project, tmp_path / "env")
    clone = shutil.copytree(project.root, tmp_path / "other clone")
    said, _ = project.ch(command=[python, clone / "ch"], cwd=clone)
    assert said["chop"] == str(clone / "chop/cli.py")


@pytest.mark.slow
def test_clone_on_the_python_path_is_no_installation(project):
    info = project.root / "mase.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mase\nVersion: 1\n")
    said, _ = project.ch(PYTHONPATH=str(project.root))
    assert said["prefix"] == str(project.venv)


@pytest.mark.slow
def test_call_from_the_activated_environment_still_notices_changes(ready):
    (ready.root / "constraints.txt").write_text("corelib==2\n")
    python = ready.venv / "bin/python"
    ready.ch(command=[python, ready.root / "ch"])
    assert ready.pip_calls() == FULL_SETUP


OLD = DISGUISED.format(disguise="sys.version_info = (3, 9, 2, 'final', 0)")


def test_old_python_is_refused_in_one_sentence(project, tmp_path):
    script(tmp_path / "old/python3", OLD)
    _, stderr = project.ch(expect=1, PATH=str(tmp_path / "old"), PYTHON="")
    assert "needs Python 3.11 or newer" in stderr
    assert "this is Python 3.9" in stderr
    assert "PYTHON=/path/to/python3" in stderr
    assert stderr.count("\n") == 1
    assert not project.venv.exists()


@pytest.mark.slow
def test_old_python_hands_over_to_a_newer_one_on_the_path(project, tmp_path):
    python = environment_with_mase(project, tmp_path / "env")
    script(tmp_path / "old/python3", OLD)
    script(tmp_path / "old/python3.13", "#!/bin/sh\nexit 127\n")  # a shim without its version
    script(tmp_path / "old/python3.12", f'#!/bin/sh\nexec "{python}" "$@"\n')
    said, _ = project.ch("two words", PATH=str(tmp_path / "old"), PYTHON="")
    assert said["argv"] == ["two words"]
    assert said["prefix"] == str(tmp_path / "env")


@pytest.mark.slow
@pytest.mark.parametrize("named", ["maker", "{outside}/bin/maker"])
def test_old_python_hands_over_to_the_one_that_is_named(project, tmp_path, named):
    outside = tmp_path / "outside"
    python = script(tmp_path / "old/python3", OLD)
    said, _ = project.ch(command=[python, "ch"], PYTHON=named.format(outside=outside))
    assert said["prefix"] == str(project.venv)


def test_python_without_venv_is_refused_in_one_sentence(project, tmp_path):
    bare = script(tmp_path / "bare", "#!/bin/sh\nexit 1\n")
    disguised = DISGUISED.format(disguise=f"sys._base_executable = {bare!r}")
    python = script(tmp_path / "python", disguised)
    _, stderr = project.ch(command=[python, "ch"], PYTHON="", expect=1)
    sentence = f"ch: the set-up of .venv failed: {bare} comes without"
    assert stderr.splitlines()[-1].startswith(sentence)
    assert "-venv)" in stderr
    assert "Traceback" not in stderr


# ------------------------------------------------------------------- the real thing


BACKEND = """
import zipfile

def _wheel(folder, editable):
    name = "mase-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("mase.pth", editable)
        info = "Metadata-Version: 2.1\\nName: mase\\nVersion: 1\\nProvides-Extra: dev\\n"
        wheel.writestr("mase-1.dist-info/METADATA", info)
        kind = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr("mase-1.dist-info/WHEEL", kind)
        wheel.writestr("mase-1.dist-info/RECORD", "")
    return name

def build_editable(folder, config_settings=None, metadata_directory=None):
    import os
    return _wheel(folder, os.getcwd())
"""


@pytest.mark.slow
def test_real_pip_takes_these_arguments(project):
    (project.root / "backend.py").write_text(BACKEND)
    (project.root / "chop/cli.py").write_text(COMMAND_LINE.replace("import corelib", ""))
    (project.root / "pyproject.toml").write_text(
        PYPROJECT.replace(
            "[project]", 'build-backend = "backend"\nbackend-path = ["."]\n[project]'
        ).replace("builder", "pip")
        + 'version = "1"\n[project.optional-dependencies]\ndev = []\n'
    )
    offline = {"PYTHON": "", "PIP_NO_INDEX": "1"}
    assert project.ch(**offline)[0]["prefix"] == str(project.venv)
    _, stderr = project.ch(command=make_test(project), **offline)
    assert "up to date" in stderr
    assert project.ch(**offline)[1] == ""


@pytest.mark.slow
def test_fresh_clone_runs_with_one_command(tmp_path):
    if not (CLONE / ".git").exists():
        pytest.skip("this is not a clone")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", CLONE, clone], check=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    python = Path(sys._base_executable).parent
    env = {**kept, "PATH": f"{python}:{os.environ['PATH']}", "HOME": os.environ["HOME"]}
    options = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True}
    calls = [subprocess.run([clone / "ch", "--version"], **options) for _ in range(2)]
    assert [call.returncode for call in calls] == [0, 0], calls[0].stderr
    assert calls[0].stdout == calls[1].stdout != ""
    assert calls[1].stderr == ""
