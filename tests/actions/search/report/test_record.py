"""Which search is meant, and what is said when there is none."""

import json
from pathlib import Path

import pytest

from chop.actions.config import ConfigError
from chop.actions.search.results.page import find_record, read_record
from chop.actions.search.results.page.record import SUM, SearchRecord


def test_a_search_is_found_by_name_by_folder_and_by_file(project, tmp_path):
    folder = project("mine", 3)
    record = folder / "software" / "search_ckpts" / "search.json"
    places = ["mine", str(folder), folder, record, record.parent]
    assert {find_record(place, tmp_path / "out") for place in places} == {record}


def test_a_project_that_is_not_there_is_refused_with_the_nearest_one(project, tmp_path):
    project("jsc-search", 3)
    for name, folder, said in (
        ("jsc-serach", "out", r"no project 'jsc-serach' in .*did you mean 'jsc-search'"),
        ("x", "out", "projects with a search: jsc-search"),
        ("x", "nowhere", "--project-dir names another folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            find_record(name, tmp_path / folder)


def test_a_project_without_a_search_is_refused_with_the_command(tmp_path):
    (tmp_path / "trained").mkdir()
    with pytest.raises(ConfigError, match=r"no search in .*run `ch search --project trained`"):
        find_record("trained", tmp_path)


def file_with(folder: Path, text: str | bytes) -> Path:
    file = folder / "search.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"version": 1, "trials": [', "line 1 column"),
        (b"\xff\xfe{}", "can't decode byte 0xff"),
        ("[]", "it has no version"),
        ('{"version": "one"}', "it has no version"),
        ('{"version": 1, "trials": []}', "objectives: Field required"),
        ('{"version": 1, "trials": [], "objectives": []}', "objectives: "),
        (
            '{"version": 1, "objectives": [{"name": "a", "direction": "up"}], "trials": []}',
            "objectives.0.direction: ",
        ),
    ],
)
def test_a_damaged_file_says_where_and_how_to_get_a_new_one(tmp_path, text, why):
    with pytest.raises(ValueError, match=r"is damaged .*`ch search --resume`") as caught:
        read_record(file_with(tmp_path, text))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_newer_file_asks_for_a_newer_mase(tmp_path, search):
    file = file_with(tmp_path, json.dumps(search(2, version=2)))
    said = "has version 2, but this MASE supports versions up to 1; update"
    with pytest.raises(ValueError, match=said):
        read_record(file)


def test_keys_that_nobody_knows_yet_are_no_error(tmp_path, search):
    file = file_with(tmp_path, json.dumps(search(2, colour="blue")))
    assert len(read_record(file).trials) == 2


def test_what_is_no_finite_number_counts_as_absent(tmp_path, search):
    content = search(3)
    content["trials"][0]["software_metrics"] = {"accuracy": float("nan"), "loss": float("inf")}
    content["trials"][0]["values"] = [float("nan"), 1e999]
    first = read_record(file_with(tmp_path, json.dumps(content))).trials[0]
    assert first.metrics["accuracy"] is None
    assert first.metrics["loss"] is None
    assert first.values == [None, None]


def test_a_sum_is_a_metric_and_the_only_goal(search):
    record = SearchRecord.model_validate(search(3, summed="maximize"))
    assert [goal.name for goal in record.goals] == [SUM]
    assert record.metrics_of(record.trials[0])[SUM] == record.trials[0].values[0]


def test_an_objective_that_no_metric_repeats_is_unscaled_from_the_values(search):
    content = search(1)
    expected = content["trials"][0]["hardware_metrics"].pop("average_bitwidth")
    record = SearchRecord.model_validate(content)
    assert record.metrics_of(record.trials[0])["average_bitwidth"] == pytest.approx(expected)
