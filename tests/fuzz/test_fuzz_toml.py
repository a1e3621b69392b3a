"""Configuration files: those of configs/examples and of the pages in docs, with odd lines."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import tomlkit

from .commands import OPTIONS
from .corpus import HEAD_TOML, SEARCH_TOML
from .harness import Sandbox, inputs
from .mutations import TOML_HUGE, TOML_VALUES, changed_lines, damaged

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```toml\n(.*?)```", re.DOTALL)
PAIR = re.compile(r"(?P<key>\s*[\w.'\\|()\[\]-]+)\s*=\s*(?P<value>.+)")
BUDGETS = (  # how much is to be done: a large number here is a wish, not a fault
    *("max_epochs", "max_steps", "n_trials", "population", "num_samples", "batch_size", "repeat"),
    *("n_jobs", "workers", "num_devices", "num_nodes", "num_workers", "engine", "to_debug"),
    *("steps", "epochs", "members", "retrain", "checkpoints", "hidden"),
)
SMALL = (
    (r'dataset = "[\w-]+"', 'dataset = "npz"\ndata_path = "data.npz"'),
    (r'model = "vgg7"', 'model = "jsc-tiny"'),
    (r"\bmax_epochs = \d+", "max_epochs = 2"),
    (r"\brungs = \[.*?\]", "rungs = [1]"),
    (r"\bn_trials = \d+", "n_trials = 2"),
    (r"\btrial_timeout = \d+", "timeout = 600"),  # needs a process of its own
    (r"\bpopulation = \d+", "population = 2"),
    (r"\b(steps|retrain) = [\d_]+", r"\1 = 4"),
    (r"\b(members|checkpoints) = \d+", r"\1 = 2"),
    (r"\bnum_samples = \d+", "num_samples = 32"),
    (r'\baccelerator = "\w+"', 'accelerator = "cpu"'),
    (r"(?m)^load_(name|type) = .*$", ""),
    # circuits are built by other programs, which takes long
    (r"(?m)^\[search\.(emit|synthesize)\].*\n(?:[^\[\n].*\n?|\n)*", ""),
)


@cache
def samples() -> list[str]:
    """Return all files and blocks, made small: a few steps of training, two trials."""
    texts = [file.read_text() for file in sorted((ROOT / "configs" / "examples").glob("*.toml"))]
    for page in sorted((ROOT / "docs").rglob("*.md")):
        texts += BLOCK.findall(page.read_text())
    return [small(text) for text in texts]


def small(text: str) -> str:
    """Return a file that runs in a moment; a piece of a file gets what it lacks."""
    for pattern, replacement in SMALL:
        text = re.sub(pattern, replacement, text)
    if not re.search(r"(?m)^model = ", text):
        whole = HEAD_TOML + SEARCH_TOML if "[search" in text else HEAD_TOML
        return tomlkit.dumps(merged(tomllib.loads(whole), tomllib.loads(text)))
    if "[search." in text and "train_parent" not in text:
        return "search.train_parent = true\n" + text
    return text


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return both tables as one; where they differ, `other` wins."""
    both = one | other
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            both[key] = merged(one[key], other[key])
    return both


def action(random: Random, text: str) -> str:
    """Return a command that reads these tables."""
    tables = {"search": "[search", "transform": "[passes"}
    return random.choice([name for name in tables if tables[name] in text] or ["train"])


def mutated(random: Random, text: str, home: Path) -> bytes:
    """Return the file with an odd value, a wrong key or table, lines out of order, or bytes."""
    way = random.randrange(12)
    if way == 0:
        return damaged(random, text.encode())
    lines = text.splitlines()
    if way == 1:
        return "\n".join(changed_lines(random, lines)).encode(errors="surrogateescape")
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        pairs = [n for n, line in enumerate(lines) if PAIR.fullmatch(line)]
        place = random.choice(pairs)
        lines[place] = with_odd_value(random, lines[place])
        if way == 2:
            lines[place] = lines[place].replace("=", random.choice((".x =", "_ =", "", "= =")), 1)
        if way == 3:
            lines.insert(place, random.choice(("[search]", "[[passes]]", "[model_args]", "[a.b]")))
    return "\n".join(lines).replace("@HOME@", str(home)).encode()


def with_odd_value(random: Random, line: str) -> str:
    """Return the line with another value; nobody has to train for ever."""
    key = PAIR.fullmatch(line)["key"]
    huge = () if key.strip().rpartition(".")[2] in BUDGETS else TOML_HUGE
    return f"{key} = {random.choice((*TOML_VALUES, *huge))}"


@inputs("toml")
def test_a_configuration_file_is_run_or_refused(
    sandbox: Sandbox, random: Random, index: int
) -> None:
    sandbox.take("data.npz", "best.ckpt")
    text = random.choice(samples())
    (sandbox.work / "odd.toml").write_bytes(mutated(random, text, sandbox.home))
    sandbox.check(action(random, text), "--config=odd.toml", *OPTIONS)
