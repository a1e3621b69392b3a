"""Command lines: options that do not exist, with odd values, missing ones, or too many."""

from __future__ import annotations

from pathlib import Path
from random import Random

from chop.actions.config import OPTIONS as KNOWN

from .commands import OPTIONS
from .harness import Sandbox, inputs
from .mutations import TEXTS

ACTIONS = ("train", "test", "transform", "search", "list", "report", "nonsense")
# what starts other processes, asks the network, or opens a window has tests of its own
LEFT_OUT = {"engine", "workers", "num_devices", "num_nodes", "strategy", "compile", "num_workers"}
LEFT_OUT |= {"project_dir", "is_pretrained", "max_epochs", "max_steps", "batch_size"}
LEFT_OUT |= {"to_debug", "log_level"}  # which show tracebacks on purpose
FLAGS = {
    flag: option
    for name, option in KNOWN.items()
    if name not in LEFT_OUT
    for flag in option.flags or ()
}
WORDS = (
    *(text for text in TEXTS if "\x00" not in text and text.isprintable()),
    *("-1", "0", "1", "1e400", "nan", "inf", "99999999999999999999", "0x10", "1_000", "true"),
    *("jsc-tiny", "npz", "jsc-s", "cls", "pl", "mz", "32", "bf16", "adam", "sgd", "best", "all"),
    *("data.npz", "best.ckpt", "graph", "search.toml", "transform.toml", "missing.toml", "."),
    *("sqlite:///study.db", "sqlite:///:memory:", "sqlite:///", "mysql://u:p@h/d", "data.npz.bak"),
    *("--", "-", "-x", "--nope", "--nope=1", "-h", "--help", "--version", "--info"),
)
SMALL = ("--max-epochs=1", "--max-steps=2", "--batch-size=32")


def words(random: Random) -> list[str]:
    """Return a command line of known and unknown words, not too far from a good one."""
    action = random.choice(ACTIONS[:4] if random.random() < 0.8 else ACTIONS)
    argv = [action]
    if random.random() < 0.8:
        argv += ["jsc-tiny", "npz", "--data-path=data.npz"]
    if action in ("transform", "search") and random.random() < 0.8:
        argv.append(f"--config={action}.toml")
    if action == "test" and random.random() < 0.8:
        argv += ["--load=best.ckpt", "--load-type=pl"]
    for _ in range(random.randint(1, 3)):
        argv += option(random)
    return argv


def option(random: Random) -> list[str]:
    """Return an option with an odd value; at times one that lacks it, or a word alone."""
    flag, word = random.choice(sorted(FLAGS)), random.choice(WORDS)
    if random.random() < 0.2:
        return random.choice(([flag], [word], [f"{flag}={word}"]))
    if FLAGS[flag].is_switch:
        return [flag]
    choices = FLAGS[flag].choices
    return [flag, random.choice(choices) if choices and random.random() < 0.7 else word]


def new_studies(sandbox: Sandbox, words: list[str]) -> list[Path]:
    """Return the files that `--storage` may ask for; those that are there are not to be changed."""
    names = {word.rpartition("=")[2].removeprefix("sqlite:///") for word in words}
    files = [sandbox.work / name for name in names if name and name == Path(name).name]
    new = [file for file in files if len(file.name) < 200 and not file.exists()]
    return new + [file.with_name(f"{file.name}-{end}") for file in new for end in ("wal", "shm")]


@inputs("command line")
def test_a_command_line_is_run_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    sandbox.take("data.npz", "best.ckpt", "graph", "search.toml", "transform.toml")
    action, *rest = words(random)
    # first, as the last of the words may take what follows it for its value
    folder = () if action == "list" else OPTIONS[:1]
    budget = SMALL if action in ACTIONS[:4] else ()
    sandbox.check(action, *folder, *rest, *budget, may_change=new_studies(sandbox, rest))
