"""The page as text: complete, escaped, and the same whatever is missing."""

import json
import math
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import chop
from chop.actions.search.results.page import SearchRecord, report_page, write_report
from chop.actions.search.results.page import columns as columns_module
from chop.actions.search.results.page import page as page_module
from chop.actions.search.results.page.columns import Columns, page_data
from chop.actions.search.results.page.markup import Html, json_block, tag
from chop.actions.search.results.page.numbers import (
    compact,
    decimals,
    difference,
    duration,
    number,
    standard_error,
)
from chop.actions.search.results.page.sections import failures

WIDTHS = {"name": "integer", "weight_width": 3, "weight_frac_width": 2} | {
    "data_in_width": 8, "data_in_frac_width": 4, "bias_width": 8, "bias_frac_width": 4
}  # fmt: skip
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'\u2028"
VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """Elements, their text, and whether every tag is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, text):
        self.texts.append(text)

    def named(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))


def test_wheels_carry_the_scripts_and_styles_of_the_page():
    root = Path(chop.__file__).parents[1]
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    patterns = tables["setuptools"]["package-data"]["chop"]
    carried = {path for pattern in patterns for path in (root / "chop").glob(pattern)}
    assets = set((Path(page_module.__file__).parent / "assets").iterdir())
    assert assets
    assert assets <= carried


def test_the_page_is_one_file_that_names_no_other(page):
    text = page(40)
    made = Page(text)
    assert "link" not in dict(made.tags)
    assert "img" not in dict(made.tags)
    assert not [s for s in made.named("script") if "src" in s]
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    assert "unsafe-inline" not in text


def test_the_page_is_outlined_by_headings_and_landmarks(page):
    made = Page(page(40))
    for landmark in ("header", "main", "footer"):
        assert len(made.named(landmark)) == 1
    assert len(made.named("h1")) == 1
    ids = [attributes["id"] for _, attributes in made.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = [s["aria-labelledby"] for s in made.named("section")]
    assert set(labels) <= set(ids)


def test_the_text_of_the_page(page, golden):
    """Everything that is text, without the drawings."""
    text = page(30, test={"8": {"validation": {"accuracy": 0.71}, "test": {"accuracy": 0.7}}})
    text = re.sub(r"<(style|script)\b.*?</\1>|<meta[^>]*>", "", text, flags=re.DOTALL)
    words = [" ".join(part.split()) for part in Page(text).texts]
    golden("report.txt", "\n".join(filter(None, words)) + "\n")


def test_values_cannot_break_out_of_the_page(search):
    content = search(12, model=EVIL, command=EVIL, study=EVIL, constraints=[EVIL])
    content["versions"][EVIL] = EVIL
    content["importance"] = {EVIL: {EVIL: 0.5}}
    content["test"] = {EVIL: {"validation": {EVIL: 0.1}, "test": {EVIL: 0.2}}}
    content["objectives"][0]["name"] = EVIL
    for trial in content["trials"]:
        trial["params"] = {EVIL: EVIL}
        trial["config"] = {EVIL: {"config": {"name": EVIL}}}
        trial["error"] = EVIL if trial["state"] == "FAIL" else None
    text = report_page(SearchRecord.model_validate(content))
    made = Page(text)
    assert len(made.named("script")) == 2
    assert not made.named("img")
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1)
    assert data_of(text)["command"] == EVIL


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 0},
        {"trials": 1},
        {"trials": 30, "objectives": 1},
        {"trials": 30, "objectives": 3},
        {"trials": 30, "summed": "maximize"},
        {"trials": 30, "baseline": None, "importance": {}, "chosen": None, "constraints": []},
        {"trials": 30, "finished": None, "seconds": None, "started": "some day"},
    ],
)
def test_every_kind_of_search_has_a_page(page, changes):
    text = page(**changes)
    Page(text)
    data = data_of(text)
    assert all(0 <= place < len(data["number"]) for place in data["front"])


def test_a_search_that_only_failed_says_so(search):
    content = search(9, front=[], chosen=None)
    for trial in content["trials"]:
        trial |= {"state": "FAIL", "values": None, "software_metrics": {}, "hardware_metrics": {}}
        trial["error"] = "Traceback …\nRuntimeError: no"
    text = report_page(SearchRecord.model_validate(content))
    assert "none was completed within the constraints" in text
    assert "9 ×" in text
    assert "RuntimeError: no" in text
    assert data_of(text)["number"] == []


def test_least_of_all_a_record_needs_a_version_objectives_and_trials():
    least = {"version": 1, "objectives": [{"name": "a", "direction": "minimize"}], "trials": []}
    Page(report_page(SearchRecord.model_validate(least)))


def test_absent_numbers_are_dashes_and_nulls(search):
    content = search(20)
    best = next(t for t in content["trials"] if t["number"] == content["front"][0])
    best["software_metrics"] = {"accuracy": None, "loss": float("nan")}
    best["values"] = [None, 1.0]
    text = report_page(SearchRecord.model_validate(content))
    assert "NaN" not in text[text.index('id="data"') :].split("</script>")[0]
    assert '<td class="n" data-value="">–</td>' in text


def test_a_trial_of_the_front_that_is_not_there_is_left_out(page):
    assert data_of(page(20, front=[3, 999], chosen=999))["front"] == [3]


def test_the_front_is_listed_best_first_with_its_commands(page, search):
    content = search(80)
    by_number = {
        t["number"]: t["software_metrics"]["accuracy"] for t in content["trials"] if t["values"]
    }
    text = page(80)
    listed = [int(n) for n in re.findall(r'data-trial="(\d+)"', text)]
    assert listed == sorted(content["front"], key=lambda n: -by_number[n])
    for trial in content["front"]:
        assert f"ch search … --apply {trial}<" in text


def test_a_long_front_is_cut_in_the_table_and_whole_in_the_drawing(search):
    content = search(600)
    done = [trial for trial in content["trials"] if trial["state"] == "COMPLETE"]
    content["front"] = [trial["number"] for trial in done]
    text = report_page(SearchRecord.model_validate(content))
    assert len(re.findall(r'data-trial="', text)) == 500
    assert f"The first 500 of {len(done)} designs" in text
    assert len(data_of(text)["front"]) == len(content["front"])


def test_failures_with_the_same_message_are_one(search):
    record = SearchRecord.model_validate(search(60))
    (group,) = failures(record.trials)
    assert group.message == "ValueError: a batch of <0> rows"
    assert group.numbers == tuple(t.number for t in record.trials if t.state == "FAIL")
    unknown = record.trials[0].model_copy(update={"state": "FAIL", "error": None})
    assert failures([unknown])[0].message == "no error was recorded"


def test_simulated_data_are_called_so_and_real_ones_are_not(page):
    assert "Simulated data." in page(5)
    assert "Simulated data." not in page(5, simulated=False)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (18, "18 designs"),
        (None, "not countable"),
        (15**20, "3.3 × 10<sup>23</sup> designs"),
        (7**500, "3.5 × 10<sup>422</sup> designs"),
    ],
)
def test_the_size_of_a_space_is_readable_however_large(page, size, text):
    assert f"<dd>{text}</dd>" in page(2, space={"name": "s", "size": size})


def test_test_scores_stand_beside_those_of_validation(page):
    scores = {"validation": {"accuracy": 0.75}, "test": {"accuracy": 0.7375, "loss": None}}
    text = page(10, test={"8": scores, "baseline": scores})
    assert "trial 8" in text
    assert "−0.0125" in text
    assert "Test and validation" not in page(10)
    assert "0.6543" in page(10, test={"baseline": {"accuracy": 0.6543}})  # of one split alone


def test_columns_that_say_the_same_are_kept_once():
    columns = Columns()
    assert columns.add([1, 2, 1]) == columns.add([1, 2, 1]) == 0
    assert columns.add(["a", "a", "a"]) == 1
    assert columns.kept == [{"values": [1, 2], "index": [0, 1, 0]}, {"values": ["a"]}]
    assert columns.add(list(range(100))) == 2
    assert columns.kept[2] == {"numbers": list(range(100))}
    assert columns.add([]) == 3


def test_true_and_one_are_different_values():
    columns = Columns()
    columns.add([True, 1, "1", None, [1]])
    assert columns.kept[0]["values"] == [True, 1, "1", None, [1]]


def test_layers_that_were_not_noted_come_from_the_config(search):
    content = search(10)
    for trial in content["trials"]:
        del trial["layers"]
    layers = page_data(SearchRecord.model_validate(content))["layers"]
    assert "seq_blocks_2/weight_bits" in layers
    assert not [key for key in layers if key.startswith("default")]


def test_layers_without_weights_are_left_out_and_float_ones_kept(search):
    layer = {"format": "float", "data_in_bits": 32.0, "weight_bits": 32.0}
    content = search(10)
    content["layers"] = {
        "seq_blocks_2": {"op": "Linear 16→64", **layer},
        "norm": {"op": "BatchNorm1d 64", **layer},
    }
    for trial in content["trials"]:
        trial["layers"] = {}
        trial["config"] = {"relu": {"config": {"name": None}}, "seq_blocks_2": {"config": WIDTHS}}
    data = page_data(SearchRecord.model_validate(content))
    values = {key: data["columns"][column]["values"] for key, column in data["layers"].items()}
    assert values == {
        "seq_blocks_2/op": ["Linear 16→64"],
        "seq_blocks_2/format": ["integer"],
        "seq_blocks_2/data_in_bits": [8],
        "seq_blocks_2/weight_bits": [3],
        "norm/op": ["BatchNorm1d 64"],
        "norm/format": ["float"],
        "norm/data_in_bits": [32],
        "norm/weight_bits": [32],
    }


def test_designs_of_a_running_search_have_no_layers_as_their_configs_are_unknown(search):
    content = search(10)
    content["layers"] = {"a": {"op": "Linear 1→1", "weight_bits": 32.0}}
    for trial in content["trials"]:
        trial |= {"layers": {}, "config": {}}
    assert page_data(SearchRecord.model_validate(content))["layers"] == {}


def test_shares_have_their_standard_error_and_failed_trials_their_message(search):
    content = search(40, samples={"accuracy": 400})
    record = SearchRecord.model_validate(content)
    data = page_data(record)
    samples = {metric["name"]: metric["samples"] for metric in data["metrics"]}
    assert samples.pop("accuracy") == [400]
    assert set(samples.values()) == {None}
    assert data["failed"]["number"] == [7, 30]
    errors = data["columns"][data["failed"]["error"]]
    assert errors == {"values": ["ValueError: a batch of <0> rows"]}
    best = content["trials"][content["front"][0]]["software_metrics"]["accuracy"]
    error = math.sqrt(best * (1 - best) / 400)
    assert f'{best:.4f}<span class="quiet"> ± {error:.4f}</span>' in report_page(record)


@pytest.mark.parametrize(
    ("share", "samples", "error"),
    [
        *[(0.5, 100, 0.05), (0.0, 10, 0.0), (1.0, 10, 0.0)],
        *[(None, 10, None), (0.5, None, None), (0.5, 0, None), (1.5, 10, None), (-0.1, 10, None)],
    ],
)
def test_the_standard_error_is_that_of_a_binomial_share(share, samples, error):
    assert standard_error(share, samples) == error


def test_a_page_that_would_be_too_large_keeps_the_configs_of_the_front(search, monkeypatch):
    record = SearchRecord.model_validate(search(100))
    monkeypatch.setattr(columns_module, "MAX_CHARACTERS", 1000)
    data = page_data(record)
    assert data["configs_of_all"] is False
    names = data["columns"][data["config"]["seq_blocks_2/config/name"]]
    known = [names["values"][index] for index in names["index"]]
    kept = [i for i, value in enumerate(known) if value is not None]
    assert kept == sorted({*data["front"], data["chosen"]})


@pytest.mark.parametrize(
    ("trials", "most"), [(1000, 800_000), pytest.param(10_000, 5_000_000, marks=pytest.mark.slow)]
)
def test_ten_thousand_trials_of_twenty_layers_stay_below_five_megabytes(search, trials, most):
    layers = {f"feature_layers_{i}": "conv2d" for i in range(20)}
    text = report_page(SearchRecord.model_validate(search(trials, layers=layers)))
    assert len(text.encode()) < most


def test_the_page_is_written_beside_the_search_or_where_one_says(project, tmp_path):
    record = project("mine", 5) / "software" / "search_ckpts" / "search.json"
    assert write_report(record) == record.with_name("report.html")
    assert write_report(record, tmp_path / "new" / "page.html").is_file()
    with pytest.raises(IsADirectoryError, match="give a file in it"):
        write_report(record, tmp_path)
    assert {path.name for path in record.parent.iterdir()} == {"search.json", "report.html"}


@pytest.mark.parametrize(
    ("values", "digits"),
    [([0.7123, 0.5], 4), ([12.345, 0.001], 2), ([4.0, 8.0], 0), ([], 0), ([None, 0.0], 0)],
)
def test_a_column_has_digits_enough_to_tell_its_numbers_apart(values, digits):
    assert decimals(values) == digits


def test_numbers_are_written_for_people():
    assert number(1234567.5, 1) == "1,234,567.5"
    assert number(-0.5, 2) == "−0.50"
    assert number(None, 2) == "–"
    assert (difference(0.5, 1), difference(-0.5, 1)) == ("+0.5", "−0.5")
    times = [None, 0.0123, 4.21, 125.4, 3725]
    assert list(map(duration, times)) == ["–", "12 ms", "4.2 s", "2 min 05 s", "1 h 02 min"]
    exact = {0.123456789: 0.123457, 4.0: 4, 1234567.0: 1234567, -1234567.8: -1234568, 0.0: 0}
    assert {value: compact(value) for value in exact} == exact
    assert compact(1.23456789e-12) == 1.23457e-12
    assert compact(None) is None


def test_a_tag_escapes_all_but_what_is_html_already():
    assert tag("p", "<b>", Html("<i></i>"), title='"', hidden=True, lang=None) == (
        '<p title="&quot;" hidden>&lt;b&gt;<i></i></p>'
    )
    assert json_block({"a": "</script>"}) == '{"a":"\\u003c/script\\u003e"}'
    with pytest.raises(ValueError, match=r"not JSON compliant|Out of range"):
        json_block(float("nan"))
