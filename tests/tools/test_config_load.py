"""TOML with "NA" for None, and the helper of the labs that merges and prints."""

import argparse

import pytest

from chop.tools.config_load import (
    convert_none_to_str_na,
    convert_str_na_to_none,
    load_config,
    post_parse_load_config,
    save_config,
)


def test_what_is_saved_is_loaded(tmp_path):
    config = {"name": None, "widths": [8, None], "table": {"deep": {"x": None, "y": 1.5}}}
    save_config(config, tmp_path / "new" / "a.toml")
    assert load_config(tmp_path / "new" / "a.toml") == config
    assert 'name = "NA"' in (tmp_path / "new" / "a.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("convert", [convert_none_to_str_na, convert_str_na_to_none])
def test_converting_leaves_the_callers_data_alone(convert):
    config = {"a": [None, "NA", {"b": ("NA", None)}]}
    convert(config)
    assert config == {"a": [None, "NA", {"b": ("NA", None)}]}


def test_only_the_whole_text_na_is_none():
    assert convert_str_na_to_none(["NA", "NAN", "na", 0, False]) == [None, "NAN", "na", 0, False]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a = \n", 1),
        (b"a = 1\na = 2\n", 2),
        (b"a = 1\nb = [1,\n", 2),
        (b"a = 1\nb = 3\n\nc = 'x\n", 4),
        (b"a = 1\n\nb = 2\nb = 3", 4),
        (b"\xff\xfe", 1),
        (b"a = 1\nb = '\xff'\n", 2),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_the_line(tmp_path, content, line):
    (tmp_path / "broken.toml").write_bytes(content)
    with pytest.raises(ValueError, match=rf"broken\.toml is not valid TOML: .*\(at line {line}\b"):
        load_config(tmp_path / "broken.toml")


def test_the_labs_helper_merges_and_prints(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("max_epochs = 5\nseed = 3\n", encoding="utf-8")
    defaults = {"max_epochs": 20, "seed": 0, "batch_size": 128, "config": None}
    config = str(tmp_path / "run.toml")
    args = argparse.Namespace(max_epochs=20, seed=7, batch_size=128, config=config)
    merged = post_parse_load_config(args, defaults)
    assert (merged.max_epochs, merged.seed, merged.batch_size) == (5, 7, 128)
    printed = capsys.readouterr().out
    assert "| max_epochs |   20    |      5       |                 |     5     |" in printed
    assert "config " not in printed


def test_a_parser_that_suppresses_defaults_tells_the_helper_what_was_not_given(capsys):
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--config")
    merged = post_parse_load_config(parser.parse_args([]), {"seed": 4})
    assert merged.seed == 4
    assert "Config. File" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "{a = " * 5000 + "1" + "}" * 5000,
        ".".join("a" * 5000) + " = 1",
        "[" + ".".join("a" * 150) + "]",
        "a = " + "[" * 200 + "]" * 200,
    ],
    ids=["lists", "tables", "dotted keys", "a header", "lists that can be read"],
)
def test_a_file_nested_without_end_is_refused(tmp_path, text):
    (tmp_path / "deep.toml").write_text(text)
    said = r"deep\.toml: .* nested more than 100 levels deep; flatten"
    with pytest.raises(ValueError, match=said):
        load_config(tmp_path / "deep.toml")


def test_a_file_may_be_nested_as_deep_as_any_that_is_meant(tmp_path):
    (tmp_path / "deep.toml").write_text("a = " + "[" * 60 + "]" * 60)
    load_config(tmp_path / "deep.toml")


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "1" + "0" * 30, "-9" + "0" * 30])
def test_a_number_that_toml_has_not_is_refused(tmp_path, number):
    (tmp_path / "large.toml").write_text(f"a = [{number}]")
    with pytest.raises(ValueError, match=r"large\.toml: .* exceeds 64 bits"):
        load_config(tmp_path / "large.toml")


def test_the_largest_numbers_of_toml_are_read(tmp_path):
    (tmp_path / "large.toml").write_text(f"a = [{2**63 - 1}, {-(2**63)}]")
    assert load_config(tmp_path / "large.toml") == {"a": [2**63 - 1, -(2**63)]}
