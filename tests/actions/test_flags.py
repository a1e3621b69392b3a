"""The library names parameters; what `ch` prints names flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import chop
from chop.actions.config import OPTIONS
from chop.actions.flags import OPTION_OF, with_flags
from chop.cli import main
from chop.system.log import root_logger, show_logs

ROOT = Path(chop.__file__).parent
LIBRARY = ("training", "dataset", "models", "tools", "system")
MODULES = ("checkpoints", "devices")
FLAG = re.compile(r"(?<![\w-])--[a-z]")


def library_files() -> list[Path]:
    inside = [file for room in LIBRARY for file in (ROOT / room).rglob("*.py")]
    return inside + [ROOT / f"{module}.py" for module in MODULES]


def strings(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_no_text_of_the_library_names_a_flag():
    with_a_flag = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in library_files()
        for line, text in strings(file)
        if FLAG.search(text)
    ]
    assert with_a_flag == []


def test_parameters_in_backquotes_become_flags():
    assert with_flags("use `load_type='pl'` or `load_name`") == "use --load-type pl or --load"
    assert with_flags("`batch_size=3` is odd") == "--batch-size 3 is odd"
    assert with_flags("add `allow_nonfinite=True`") == "add --allow-nonfinite"


@pytest.mark.parametrize(
    "text", ["run `ch search … --resume`", "`model` is unknown", "`x`", "it`s"]
)
def test_other_texts_stay_as_they_are(text):
    assert with_flags(text) == text


def test_every_alias_leads_to_an_option_with_a_flag():
    assert all(OPTIONS[option].flags for option in OPTION_OF.values())


def test_an_error_of_the_library_reaches_the_user_with_flags(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["train", "jsc-tiny", "csv", "--project-dir", str(tmp_path)])
    assert "set --data-path to a .csv" in capsys.readouterr().err


def test_log_messages_are_worded_for_the_reader(capsys):
    for wording in (with_flags, str):
        show_logs("info", wording)
        root_logger.warning("lower `eta_min`")
    assert capsys.readouterr().err.splitlines() == [
        "WARNING  lower --eta-min",
        "WARNING  lower `eta_min`",
    ]
