"""A process that has torch and MASE loaded, and forks a child for every command line.

It reads a line of JSON per command from stdin, and answers with the exit status of the child.
It computes nothing itself: a process that has started threads cannot be forked safely.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

# what commands import when they need it, besides MASE; pyarrow starts a thread, so it is left out
MODULES = (
    *("alembic.config", "h5py", "numpy.ctypeslib", "onnx", "safetensors.torch", "torch._dynamo"),
    *("torch.utils.serialization", "torch.utils.tensorboard"),
    *("typer._adapters", "typer.rich_utils"),
)
GIB = 1 << 30
LIMITS = {resource.RLIMIT_AS: 8 * GIB, resource.RLIMIT_FSIZE: GIB // 4, resource.RLIMIT_CORE: 0}
PATIENCE = 600  # seconds for a child that waits without using the CPU
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ONE_PATH = (
    *("os.chmod", "os.chown", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.utime"),
    "shutil.rmtree",
)
TWO_PATHS = ("os.link", "os.rename", "os.symlink", "shutil.move")
FORBIDDEN = (
    *("os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen"),
    "socket.connect",
)
HARMLESS = ("uname",)  # which `platform` asks for the processor


def main() -> None:
    """Serve command lines until stdin ends."""
    load()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            serve(json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the command has left running
        print(status, flush=True)


def load() -> None:
    """Import once what every command would have to import again."""
    import chop

    for module in pkgutil.walk_packages(chop.__path__, "chop."):
        importlib.import_module(module.name)
    for name in MODULES:
        with contextlib.suppress(ImportError):  # a version without it only takes longer
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    sys.modules["chop.training.learned.options"].STEPS = 4  # of a file that has lost its own
    gc.freeze()  # a child that collects garbage would copy the pages of all objects
    assert len(os.listdir("/proc/self/task")) == 1, "an import has started a thread"


def serve(request: dict[str, Any]) -> NoReturn:
    """Run one command in its own folder, within the limits, and end."""
    folder = Path(request["folder"])
    os.setsid()
    redirect(folder)
    os.chdir(folder / "work")
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # TMPDIR is another one now
    for limit, most in LIMITS.items():
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"] + 1))
    signal.alarm(PATIENCE)
    watch(folder)
    code = run(request["argv"])
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def redirect(folder: Path) -> None:
    """Send stdout and stderr to files; stdin is empty."""
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, name in enumerate((os.devnull, folder / "stdout", folder / "stderr")):
        os.dup2(os.open(name, new if number else os.O_RDONLY, 0o600), number)


def run(argv: list[str]) -> int:
    """Return the exit code of `ch` with these words; an error is printed as Python prints it."""
    from chop.__main__ import main as ch

    sys.argv = ["ch", *argv]
    try:
        ch()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def watch(folder: Path) -> None:
    """Refuse and note what goes beyond `folder`: writing, starting a process, connecting."""
    notes = os.open(folder / "violations", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def refuse(event: str, what: object) -> NoReturn:
        os.write(notes, f"{event} {what!r}\n".encode())
        raise PermissionError(f"{event} {what!r} is refused by the test")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN and arguments[0] not in HARMLESS:
            refuse(event, arguments[:2])
        for path in changed_paths(event, arguments):
            if not is_inside(path, folder):
                refuse(event, path)

    sys.addaudithook(hook)


def changed_paths(event: str, arguments: tuple[Any, ...]) -> list[str]:
    """Return the paths that an audit event is about to change; open files have none."""
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
        count = 1
    else:
        count = 1 if event in ONE_PATH else 2 if event in TWO_PATHS else 0
    return [os.fsdecode(p) for p in arguments[:count] if isinstance(p, str | bytes | os.PathLike)]


def is_inside(path: str, folder: Path) -> bool:
    """Whether a path is in `folder` once links are followed, or is the null device."""
    real = os.path.realpath(path)
    return real == os.devnull or real.startswith(f"{folder}{os.sep}")


if __name__ == "__main__":
    main()
