"""The `chop` logger."""

import logging
import sys

import pytest

from chop.system.log import HANDLER, quieter, root_logger, show_logs
from chop.tools.logger import get_logger, set_logging_verbosity


@pytest.fixture
def fresh(monkeypatch):
    """Logging as a process finds it that has just started."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(root_logger, "handlers", [])
    level = logging.root.level
    logging.root.setLevel("WARNING")
    root_logger.setLevel("NOTSET")
    yield
    logging.root.setLevel(level)


def test_importing_chop_touches_no_logging(after_imports):
    assert after_imports["handlers"] == []


def test_messages_appear_once_however_often_the_level_is_set(capsys):
    for _ in range(3):
        show_logs("info")
    root_logger.info("hello")
    assert capsys.readouterr().err == "INFO     hello\n"
    assert [h.get_name() for h in root_logger.handlers].count(HANDLER) == 1


def test_control_characters_of_a_message_do_not_reach_the_terminal(capsys):
    show_logs("info")
    root_logger.info("the layer %r", "a\x1b[31m")
    root_logger.info("the layer %s\n in\ttwo lines", "a\x1b[31m\x9b\u202e\udc80")
    said = capsys.readouterr().err
    assert said.endswith("the layer a\\x1b[31m\\x9b\\u202e\\udc80\n in\ttwo lines\n")
    assert "\x1b" not in said


def test_the_level_decides_what_is_shown(capsys):
    set_logging_verbosity("warning")
    get_logger("part").info("quiet")
    get_logger("part").warning("loud")
    assert capsys.readouterr().err == "WARNING  loud\n"


def test_setting_the_level_says_so(capsys):
    set_logging_verbosity("info")
    assert capsys.readouterr().err == "INFO     Set logging level to info\n"


def test_an_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match="one of debug, info, warning, error, critical, not 'loud'"
    ):
        set_logging_verbosity("loud")


def test_a_child_logger_belongs_to_chop():
    assert get_logger("mine").name == "chop.mine"
    assert isinstance(get_logger("mine"), logging.Logger)


def test_a_terminal_gets_colours(monkeypatch, capsys):
    show_logs("info")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    root_logger.error("bad")
    assert capsys.readouterr().err == "\033[31mERROR   \033[0m \033[34mbad\033[0m\n"


def test_passwords_are_not_logged(capsys):
    show_logs("info")
    try:
        raise ValueError("no host for postgresql://me:PW@host/db")
    except ValueError:
        root_logger.exception("cannot reach %s", "postgresql://host/db?password=PW")
    said = capsys.readouterr().err
    assert "cannot reach postgresql://host/db?password=***" in said
    assert "ValueError: no host for postgresql://me:***@host/db" in said
    assert "PW" not in said


REPORT = """
import logging, torch
from torch import nn
{setup}
from chop.ir import MaseGraph
from chop.passes import Pipeline
steps = ["init_metadata", ("add_common_metadata", {{"dummy_in": {{"input": torch.ones(1)}}}})]
Pipeline([*steps, "report_node_type"])(MaseGraph(nn.Sequential(nn.ReLU())))
"""


@pytest.mark.parametrize(
    ("setup", "times"),
    [
        ("", 1),
        ("logging.basicConfig()", 1),  # as in hosted notebooks: the root logger is at WARNING
        ("logging.basicConfig(level=logging.INFO)", 1),
        ("from chop.tools.logger import set_logging_verbosity as s; s('info'); s('info')", 1),
        ("logging.getLogger('chop').setLevel('WARNING'); logging.basicConfig()", 0),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_a_report_is_seen_once_unless_the_user_decided_against_it(capsys, setup, times):
    exec(REPORT.format(setup=setup), {})
    assert capsys.readouterr().err.count("Node name") == times


@pytest.mark.parametrize(("level", "shown"), [("info", False), ("debug", True)])
def test_a_part_is_quiet_unless_somebody_debugs(capsys, level, shown):
    show_logs(level)
    logger = logging.getLogger("chop.part.of_it")
    with quieter("chop.part"):
        logger.info("detail")
        logger.warning("trouble")
    logger.info("after")
    said = capsys.readouterr().err
    assert ("detail" in said) is shown
    assert "trouble" in said
    assert "after" in said
