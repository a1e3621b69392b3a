"""The clone's own environment, `.venv`: made once, checked at every start, mended when broken.

All that the set-up knows lies inside `.venv`: a lock, a mark that says who made it, and a stamp,
written last, once the environment has proved to work. No stamp, no trust.
"""

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import bootstrap

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "mase-setup.json"
LOCK = VENV / "mase-setup.lock"
OURS = VENV / "made-by-ch"


class SetupError(Exception):
    """What went wrong and what to do about it, in one sentence."""


def main(arguments: list[str]) -> int:
    """Run Python with these arguments where MASE is installed, if need be after making that place.

    `--repair` distrusts the stamp; `--extra NAME` asks for an extra of pyproject.toml.
    """
    repair = arguments[:1] == ["--repair"]
    command, extras = arguments[repair:], []
    while command[:1] == ["--extra"]:
        extras, command = extras + command[1:2], command[2:]
    if not command:
        sys.stderr.write(bootstrap.__doc__)
        return 2
    if installed(extras):
        return run(sys.executable, command)
    try:
        if repair:
            STAMP.unlink(missing_ok=True)
        if not ready(extras):
            with locked():
                # another call may have done the work while this one waited for the lock
                if not ready(extras):
                    prepare(extras)
    except SetupError as error:
        say(f"the set-up of .venv failed: {error}")
        return 1
    except OSError as error:
        say(f"the set-up of .venv failed: {error}; give it room and access, and call this again")
        return 1
    except KeyboardInterrupt:
        say("the set-up of .venv was interrupted; the next call goes on with it")
        return 128 + signal.SIGINT
    return run(str(PYTHON), command)


def run(python: str, command: list[str]) -> int:
    """Become that command, so that signals, streams and the exit code are its own."""
    if os.name != "nt":
        os.execv(python, [python, *command])
    return subprocess.call([python, *command])


def say(line: str) -> None:
    """Tell the user on stderr, as stdout belongs to the command."""
    print(f"ch: {line}", file=sys.stderr, flush=True)


def installed(extras: list[str]) -> bool:
    """Whether the Python that runs this has MASE and these extras; it imports none of them."""
    if Path(sys.prefix).resolve() == VENV.resolve():
        return False  # there the stamp decides
    spec = importlib.util.find_spec("chop")
    if spec is None or spec.origin is None:
        return False
    import installation  # takes 15 ms, which the usual start can do without

    # With the clone on PYTHONPATH its egg-info would pass for an installation.
    path = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
    if installation.lacks(extras, path):
        return False
    # An editable installation of another clone would run the code of that clone.
    site = Path(installation.distribution("mase", path).locate_file(""))
    return Path(spec.origin).resolve().parents[1] in (ROOT, site.resolve())


def ready(extras: list[str]) -> bool:
    """Whether `.venv` has proved to work with these extras and nothing has changed since."""
    stamp = read_stamp()
    try:
        return (
            stamp.get("digest") == digest()
            and set(extras) <= set(stamp["extras"])
            and set(stamp["packages"]) <= set(os.listdir(stamp["site"]))
            and os.access(PYTHON, os.X_OK)
        )
    except OSError:
        return False


def read_stamp() -> dict:
    """What the last set-up that worked has written down; empty if there is none."""
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def digest() -> str:
    """A fingerprint of all that the set-up follows from; pyvenv.cfg holds Python's version."""
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt", VENV / "pyvenv.cfg"]
    parts = [file.read_bytes() for file in files]
    parts += [os.fsencode(ROOT), os.fsencode(PYTHON.resolve())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def prepare(extras: list[str]) -> None:
    """Make or mend `.venv`, and stamp it once it has proved to work."""
    stamp = read_stamp()
    STAMP.unlink(missing_ok=True)
    extras = sorted({*extras, *stamp.get("extras", [])})
    # pip takes up what is there, even after an interruption; what then fails is made anew
    for anew in [False, True] if usable(stamp) else [True]:
        if anew:
            say("setting up .venv, which happens once and takes a few minutes")
            create()
        else:
            say("bringing .venv up to date, which happens once")
        install(extras)
        facts, trouble = examine(extras)
        if not trouble:
            return write_stamp({"digest": digest(), "root": str(ROOT), "extras": extras, **facts})
    raise SetupError(f"{trouble}; mend that, or try another Python: PYTHON=/path/to/python3 ./ch")


def usable(stamp: dict) -> bool:
    """Whether pip can work in `.venv`, and its scripts do not point to where the clone once was."""
    probe = f"import pip, sys; sys.exit(sys.version_info < {bootstrap.OLDEST})"
    return stamp.get("root", str(ROOT)) == str(ROOT) and call(PYTHON, "-I", "-c", probe, quiet=True)


def create() -> None:
    """Make an empty virtual environment with $PYTHON, or with the Python that runs this."""
    base = bootstrap.find([os.environ.get("PYTHON"), sys._base_executable])
    if base is None:
        package = f"python3.{sys.version_info.minor}-venv"
        raise SetupError(
            f"{sys._base_executable} comes without the venv module; install it (Debian, Ubuntu: "
            f"apt install {package}), or name another Python: PYTHON=/path/to/python3 ./ch"
        )
    clear()
    OURS.touch()
    if not call(base, "-I", "-m", "venv", "--prompt", "mase", VENV):
        raise SetupError(f"{base} could not make {VENV} (see above); is the disk full?")


def clear() -> None:
    """Empty `.venv` but for the lock; what somebody else had made there is kept."""
    entries = [entry for entry in VENV.iterdir() if entry != LOCK]
    if entries and not OURS.exists():
        put_aside(entries)
        return
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def put_aside(entries: list[Path]) -> None:
    """Move things that the set-up did not make out of its way."""
    aside = Path(tempfile.mkdtemp(prefix=".venv.old-", dir=VENV.resolve().parent))
    for entry in entries:
        entry.rename(aside / entry.name)
    say(f"there was a .venv that cannot be used; it is kept as {aside}")


def install(extras: list[str]) -> None:
    """Install the clone, editable, in pinned versions; so are the tools that build it."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    clone = ["--no-build-isolation", "-e", f".[{','.join(extras)}]" if extras else "."]
    # A pip.conf with `user = true` is common on clusters, and pip then refuses to work in .venv.
    options = ["--no-user", "--no-input", "--disable-pip-version-check", "-c", "constraints.txt"]
    for what in (build, clone):
        if not call(PYTHON, "-I", "-m", "pip", "install", *options, *what):
            raise SetupError("pip stopped (see above); check network and disk, and call this again")


def examine(extras: list[str]) -> tuple[dict, str]:
    """What `.venv` has, told by its own Python after a trial run; and the trouble, if any."""
    command = [PYTHON, "-I", ROOT / "scripts" / "installation.py", *extras]
    proof = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if proof.returncode:
        return {}, (proof.stderr.strip() or f"exit code {proof.returncode}").splitlines()[-1]
    return json.loads(proof.stdout.splitlines()[-1]), ""


def call(*command: str | Path, quiet: bool = False) -> bool:
    """Run one step of the set-up, with its output on stderr, and tell whether it worked."""
    output = subprocess.DEVNULL if quiet else sys.stderr
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    try:
        # close_fds: a pip that outlives this process keeps the lock, and nobody gets in its way
        return subprocess.call(command, cwd=ROOT, close_fds=False, **streams) == 0
    except OSError:
        return False


def write_stamp(stamp: dict) -> None:
    """Write the stamp whole or not at all."""
    draft = STAMP.with_suffix(".tmp")
    draft.write_text(json.dumps(stamp, indent=1))
    draft.replace(STAMP)


@contextlib.contextmanager
def locked():
    """Hold the right to change `.venv`; the system takes it back when this process ends."""
    if VENV.is_file():
        put_aside([VENV])
    VENV.resolve().mkdir(parents=True, exist_ok=True)
    # SIGTERM would leave pip behind; with an exception, subprocess ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with LOCK.open("a") as handle:
        os.set_inheritable(handle.fileno(), True)
        if not try_lock(handle.fileno()):
            say("waiting for another call that is setting up .venv")
            while not try_lock(handle.fileno()):
                time.sleep(0.2)
        yield


def try_lock(descriptor: int) -> bool:
    """Take the lock if it is free; where the file system knows no locks, go without."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    return True
