"""Charts in a real browser: axes, zoom, colours, error bars, filters, all trials, downloads."""

import csv
import io
import json
import math
import re
import threading
from xml.etree import ElementTree

import pytest

from chop.actions.search.results.page import (
    SearchRecord,
    comparison_page,
    find_record,
    live,
    report_page,
)

from .conftest import PHONE, WIDE, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SVG = "{http://www.w3.org/2000/svg}"


def bitops(content, value):
    """Give each trial another metric, as an objective."""
    content["objectives"][1] = {"name": "bitops", "direction": "minimize"}
    for trial in content["trials"]:
        if trial["hardware_metrics"]:
            trial["hardware_metrics"]["bitops"] = value(trial["hardware_metrics"])
        trial["values"] = None
    content["baseline"]["hardware_metrics"]["bitops"] = None
    return content


def boxes(page, selector):
    return [each.bounding_box() for each in page.locator(selector).all()]


def overlap(a, b):
    return (
        a["x"] < b["x"] + b["width"]
        and b["x"] < a["x"] + a["width"]
        and a["y"] < b["y"] + b["height"]
        and b["y"] < a["y"] + a["height"]
    )


@pytest.mark.parametrize("viewport", [WIDE, PHONE])
@pytest.mark.parametrize(
    "value",
    [
        lambda m: 241_836_000 + 1000 * m["average_bitwidth"],
        lambda m: 1e-7 * m["average_bitwidth"],
        lambda m: 0.123456 + 1e-6 * m["average_bitwidth"],
        lambda m: 10 ** m["average_bitwidth"],
        lambda m: -3e5 * m["average_bitwidth"],
        lambda m: 7.0,
    ],
    ids=["close", "tiny", "close and small", "powers", "negative", "one value"],
)
def test_labels_of_axes_never_collide_nor_leave_the_page(show, search, value, viewport):
    page = show(content=bitops(search(80), value), viewport=viewport)
    for side, log in (("x", False), ("x", True), ("y", False), ("y", True)):
        page.locator(f"#{side}-axis").select_option("bitops")
        if page.locator(f"#{side}-log").is_enabled():
            page.locator(f"#{side}-log").set_checked(log)
        settle(page)
        for axis in ("x", "y"):
            found = boxes(page, f"#scatter .tick-{axis}")
            assert 1 <= len(found) <= 20
            assert not [1 for i, a in enumerate(found) for b in found[:i] if overlap(a, b)]
            assert all(b["x"] >= 0 and b["x"] + b["width"] <= viewport["width"] for b in found)
    labels = page.locator("#parallel .tick-row")
    rows = {}
    for label, box in zip(labels.all(), boxes(page, "#parallel .tick-row"), strict=True):
        rows.setdefault(label.get_attribute("y"), []).append(box)
    for row in rows.values():
        assert not [1 for i, a in enumerate(row) for b in row[:i] if overlap(a, b)]


def test_close_numbers_are_labelled_from_an_offset(show, search):
    content = bitops(search(80), lambda m: 241_836_000 + 1000 * m["average_bitwidth"])
    page = show(content=content)
    assert re.search(r"bitops .*\(above 241,8[34]\d,000\)", page.locator("#scatter").inner_text())
    texts = page.locator("#scatter .tick-x").all_text_contents()
    assert all(re.fullmatch(r"\+[\d.]+( k)?", text) for text in texts)
    assert len(set(texts)) == len(texts)


def places(page):
    """The transforms of the marks of the front, by trial."""
    marks = page.locator("#scatter .mark").all()
    return {m.get_attribute("data-trial"): m.get_attribute("transform") for m in marks}


def left(transform):
    return float(re.match(r"translate\(([-\d.]+)", transform)[1])


def test_a_logarithmic_axis_places_by_the_logarithm(show, search):
    content = bitops(search(80), lambda m: 10 ** m["average_bitwidth"])
    bits = {
        str(t["number"]): t["hardware_metrics"].get("average_bitwidth") for t in content["trials"]
    }
    page = show(content=content)
    page.locator("#x-log").check()
    found = places(page)
    first, *others, last = sorted(found, key=bits.get)
    span = bits[last] - bits[first]
    for trial in others:
        share = (left(found[trial]) - left(found[first])) / (left(found[last]) - left(found[first]))
        assert share == pytest.approx((bits[trial] - bits[first]) / span, abs=1e-6)


def test_an_axis_with_numbers_that_are_not_positive_has_no_logarithm(show, search):
    page = show(content=bitops(search(40), lambda m: m["average_bitwidth"] - 4))
    assert page.locator("#x-log").is_disabled()
    assert page.locator("#y-log").is_enabled()


def test_dragging_a_rectangle_zooms_in_and_a_double_click_shows_all(show):
    page = show(200)
    before = places(page)
    box = page.locator("#scatter").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 200)
    assert page.locator("#scatter .brush").count() == 1
    page.mouse.move(box["x"] + 420, box["y"] + 300)
    page.mouse.up()
    zoomed = places(page)
    assert 0 < len(zoomed) < len(before)
    assert page.locator("#scatter .brush").count() == 0
    assert page.locator("#zoom-reset").is_enabled()
    inside = page.locator("#scatter").bounding_box()
    for mark in boxes(page, "#scatter .mark .shape"):
        assert inside["x"] <= mark["x"] <= inside["x"] + inside["width"]
    page.mouse.dblclick(box["x"] + 300, box["y"] + 440)
    assert places(page) == before
    assert page.locator("#zoom-reset").is_disabled()


def test_keys_and_buttons_zoom_around_the_chosen_design(show, search):
    page = show(200)
    chosen = str(search(200)["chosen"])
    before = places(page)
    page.locator("#zoom-in").click()
    zoomed = places(page)
    assert chosen in zoomed
    assert len(zoomed) < len(before)
    page.locator("#zoom-out").click()
    page.locator("#zoom-reset").click()
    assert places(page) == before
    page.locator(f"#scatter .mark[data-trial='{chosen}']").focus()
    page.keyboard.press("+")
    assert page.evaluate("document.activeElement.dataset.trial") == chosen
    assert places(page) == zoomed
    page.keyboard.press("0")
    assert places(page) == before


def fills(page):
    shapes = "[...document.querySelectorAll('#scatter .mark .shape')]"
    return page.evaluate(f"{shapes}.map(shape => getComputedStyle(shape).fill)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_third_metric_gives_the_colours_which_stand_out_and_grow_lighter(show, scheme):
    page = show(200, scheme=scheme)
    assert len(set(fills(page))) == 1
    page.locator("#colour").select_option("memory_density")
    assert len(set(fills(page))) > 5
    assert "memory_density" in page.locator("#colour-bar").inner_text()
    bars = [bar.get_attribute("fill") for bar in page.locator("#colour-bar rect").all()]

    def light(text):
        shares = [int(c) / 255 for c in re.findall(r"\d+", text)]
        r, g, b = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    lights = [light(bar) for bar in bars]
    assert lights == sorted(lights)  # so that those who see no colours can tell them apart
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for value in lights:
        high, low = sorted([light(paper), value], reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3
    page.locator("#colour").select_option("")
    assert len(set(fills(page))) == 1


def test_shares_of_samples_have_error_bars_and_other_metrics_do_not(show, search):
    content = search(120, samples={"accuracy": 512})
    page = show(content=content)
    share = content["trials"][content["chosen"]]["software_metrics"]["accuracy"]
    error = math.sqrt(share * (1 - share) / 512)
    text = f"{share:.4f} ± {error:.4f}"
    assert text in page.locator("#design-body").inner_text()
    assert text in page.locator("#front-table tr.chosen").inner_text()
    assert "512 samples" in page.locator("#error-note").inner_text()
    bars = page.locator("#errors").get_attribute("d")
    assert bars.count("h6") == 2 * len(content["front"])
    assert "v6" not in bars  # the other axis has no samples
    page.locator("#error-bars").uncheck()
    assert page.locator("#errors").count() == 0
    page.locator("#error-bars").check()
    page.locator("#y-axis").select_option("loss")
    assert page.locator("#errors").count() == 0
    assert page.locator("#error-note").inner_text() == ""


def test_without_samples_there_is_no_talk_of_errors(show):
    page = show(60)
    assert page.locator("#error-bars").is_hidden()
    assert "±" not in page.locator("main").inner_text()


def test_only_keys_that_differ_distinguish_designs(show, search):
    content = search(60)
    for trial in content["trials"]:
        for layer in trial["config"].values():
            if isinstance(layer, dict):
                layer["config"] |= {"bias_width": 8, "data_in_frac_width": trial["number"]}
        trial["params"]["seq_blocks_2/config/fixed"] = 3
    page = show(content=content)
    rows = page.locator("#design-body .long").first.locator("tbody tr").all_inner_texts()
    assert len(rows) == 6
    assert not [row for row in rows if re.search("name|bias|fixed|frac", row)]
    page.locator("#scatter .mark").first.hover()
    assert "more" not in page.locator("#tooltip").inner_text()
    assert "bias" not in page.locator("#tooltip").inner_text()
    heads = " ".join(page.locator("#trials-body thead th").all_inner_texts())
    assert not re.search("bias|fixed", heads)
    page.locator("#design summary", has_text="The whole config").click()
    assert "bias_width" in page.locator("#design-body").inner_text()


def test_layers_of_any_design_are_named_with_op_and_shape(show, search):
    layers = {
        f"seq_blocks_{i}": {"op": "Linear 16→64", "format": "float", "data_in_bits": 32.0}
        | {"weight_bits": 32.0}
        for i in (2, 5)
    }
    layers["norm"] = {**layers["seq_blocks_2"], "op": "BatchNorm1d 16"}
    content = search(60, layers=dict.fromkeys(["seq_blocks_2", "seq_blocks_5", "relu"], "x"))
    content["layers"] = layers
    for trial in content["trials"]:
        trial["layers"] = {}  # as of designs that are not on the front
    page = show(content=content)
    rows = page.locator("#layers-body tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["seq_blocks_2", "seq_blocks_5", "norm"]
    assert "Linear 16→64, integer" in rows[0]
    assert re.search(r"BatchNorm1d 16, float\s+32\s+32", rows[2])


def trials_column(page, name):
    heads = page.locator("#trials-body thead th").all_inner_texts()
    cells = page.locator(f"#trials-body tbody tr > :nth-child({heads.index(name) + 1})")
    return cells.all_inner_texts()


def test_all_trials_are_listed_sorted_and_turned_page_by_page(show, search):
    content = search(120)
    page = show(120)
    assert page.locator("#trials-place").inner_text() == "1 to 25 of 120 trials"
    assert trials_column(page, "trial") == [str(i) for i in range(25)]
    assert trials_column(page, "state")[7] == "failed"
    head = page.locator("#trials-body th button", has_text="accuracy")
    head.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    values = sorted(
        (t["software_metrics"]["accuracy"] for t in content["trials"] if t["software_metrics"]),
        reverse=True,
    )
    assert trials_column(page, "accuracy") == [f"{v:.4f}" for v in values[:25]]
    assert page.locator("#trials-body [aria-sort=descending]").inner_text() == "accuracy"
    for _ in range(4):
        page.locator("#trials-after").click()
    assert page.locator("#trials-after").is_disabled()
    assert page.locator("#trials-place").inner_text() == "101 to 120 of 120 trials"
    assert trials_column(page, "accuracy")[-1] == "–"  # what is absent comes last
    page.locator("#trials-state").select_option("failed")
    assert set(trials_column(page, "state")) == {"failed"}
    page.locator("#trials-state").select_option("front")
    assert (
        page.locator("#trials-place").inner_text().endswith(f" of {len(content['front'])} trials")
    )
    page.locator("#trials-body .choose").first.click()
    assert page.locator("#trials-body tr.chosen").count() == 1
    assert page.locator("#front-table tr.chosen").count() == 1


def downloaded(page, button):
    with page.expect_download() as download:
        page.locator(button).click()
    return download.value.suggested_filename, download.value.path().read_text(encoding="utf-8")


def test_the_table_is_saved_as_csv_without_formulas(show, search):
    content = search(60, samples={"accuracy": 512})
    content["trials"][3]["params"]["seq_blocks_2/config/weight_width"] = '=1+"2",x\n'
    page = show(content=content)
    name, text = downloaded(page, "#trials-csv")
    assert name == "jsc_tiny_on_jsc_sim_simulated_search_trials.csv"
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [int(row["trial"]) for row in rows] == list(range(60))
    for row, trial in zip(rows, content["trials"], strict=True):
        found = trial["software_metrics"].get("accuracy")
        assert (float(row["accuracy"]) if row["accuracy"] else None) == (
            None if found is None else pytest.approx(found, rel=1e-5)
        )
        if found is not None:
            error = math.sqrt(found * (1 - found) / 512)
            assert float(row["accuracy standard error"]) == pytest.approx(error, rel=1e-4)
    assert rows[3]["seq_blocks_2/config/weight_width"] == '\'=1+"2",x\n'
    assert rows[7]["state"] == "failed"
    assert rows[7]["error"] == "ValueError: a batch of <0> rows"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_saved_as_svg_with_all_their_marks(show, search, scheme):
    evil = "<b>&\"'"
    page = show(content=search(120, samples={"accuracy": 512}, model=evil), scheme=scheme)
    for button, least in (("#scatter-svg", 110), ("#parallel-svg", 100)):
        name, text = downloaded(page, button)
        assert name.endswith(".svg")
        root = ElementTree.fromstring(text)
        paths = root.iter(f"{SVG}path")
        assert sum(1 for _ in paths) >= least
        assert "var(" not in text.replace("var(--paper)", "")
        assert not [1 for each in root.iter() if each.tag in (f"{SVG}script", f"{SVG}image")]
        paper = page.evaluate(
            "getComputedStyle(document.documentElement).getPropertyValue('--paper')"
        )
        assert root.find(f"{SVG}rect").get("fill") == paper.strip()


def drag_along(page, row, start, end):
    """Drag along a row of the parallel chart, between shares of its length."""
    page.locator("#parallel").scroll_into_view_if_needed()
    line = page.locator("#parallel line.axis[x2]").evaluate_all(
        "lines => lines.filter(l => l.x2.baseVal.value - l.x1.baseVal.value > 100)"
        ".map(l => l.getBoundingClientRect()).map(r => [r.left, r.right, r.top])"
    )[row]
    from_, to, top = line
    page.mouse.move(from_ + start * (to - from_), top)
    page.mouse.down()
    page.mouse.move(from_ + (start + end) / 2 * (to - from_), top)
    page.mouse.move(from_ + end * (to - from_), top)
    page.mouse.up()
    settle(page)


def test_brushing_a_row_filters_all_charts_and_the_table(show, search):
    content = search(200)
    page = show(200)
    drag_along(page, 0, 0.9, 1.0)  # the widest data_in_width of the first layer
    key = "seq_blocks_2/config/data_in_width"
    done = [t for t in content["trials"] if t["state"] != "FAIL"]
    kept = {t["number"] for t in done if t["params"][key] == 8}
    said = f"{len(kept)} of {len(done)} designs pass the filters"
    assert page.locator("#filter-count").inner_text() == said
    assert set(map(int, places(page))) == kept & set(content["front"])
    assert page.locator("#trials-place").inner_text().endswith(f" of {len(kept)} trials")
    _, text = downloaded(page, "#trials-csv")
    assert {int(row["trial"]) for row in csv.DictReader(io.StringIO(text))} == kept
    drag_along(page, 6, 0.5, 1.0)  # and the better half of the accuracies
    accuracy = {t["number"]: t["software_metrics"]["accuracy"] for t in done}
    low, high = min(accuracy.values()), max(accuracy.values())
    both = {n for n in kept if accuracy[n] >= (low + high) / 2}
    assert abs(int(page.locator("#filter-count").inner_text().split()[0]) - len(both)) <= 2
    page.locator("#filter-list button").first.click()
    page.locator("#filter-list button").first.click()
    settle(page)
    assert set(map(int, places(page))) == set(content["front"])


def test_filters_can_be_typed_and_removed_from_the_keyboard(show, search):
    content = search(200)
    page = show(200)
    page.locator("#filter-row").select_option("accuracy")
    page.locator("#filter-from").fill("0.7")
    page.locator("#filter-to").fill("0.72")
    page.locator("#filter-to").press("Enter")
    settle(page)
    kept = {
        t["number"]
        for t in content["trials"]
        if 0.7 <= t["software_metrics"].get("accuracy", 0) <= 0.72
    }
    assert page.locator("#filter-count").inner_text().startswith(f"{len(kept)} of ")
    assert set(map(int, places(page))) == kept & set(content["front"])
    assert "0.7000 to 0.7200" in page.locator("#filter-list").inner_text()
    page.locator("#filter-row").select_option("seq_blocks_2/config/weight_width")
    assert page.locator("#filter-from option").all_inner_texts() == ["2", "3", "4", "6", "8"]
    page.locator("#filter-list button").press("Enter")
    settle(page)
    assert page.locator("#filter-count").inner_text() == ""
    assert len(places(page)) == len(content["front"])


def test_ten_thousand_trials_are_filtered_sorted_and_saved(show):
    page = show(10_000)
    page.locator("#filter-row").select_option("accuracy")
    page.locator("#filter-from").fill("0.74")
    page.locator("#filter-to").press("Enter")
    settle(page)
    count = int(page.locator("#filter-count").inner_text().split()[0].replace(",", ""))
    assert 0 < count < 9565
    page.locator("#trials-body th button", has_text="loss").click()
    _, text = downloaded(page, "#trials-csv")
    assert len(text.splitlines()) == count + 1
    _, text = downloaded(page, "#scatter-svg")
    assert text.count("<path") > 9000
    assert page.evaluate("document.querySelectorAll('*').length") < 5000


@pytest.mark.parametrize("viewport", [WIDE, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_searches_are_drawn_in_two_colours_and_shapes(show, search, viewport, scheme):
    one = SearchRecord.model_validate(search(120, samples={"accuracy": 512}))
    other = SearchRecord.model_validate(search(90, seed=1))
    text = comparison_page([one, other], ["first", "second"])
    page = show(text=text, viewport=viewport, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    looks = page.evaluate(
        "[...document.querySelectorAll('#scatter .mark .shape')].map(shape => "
        "[shape.parentElement.dataset.search, getComputedStyle(shape).fill, "
        "shape.getAttribute('d')])"
    )
    by_search = {key: {tuple(look) for n, *look in looks if n == key} for key in "01"}
    assert all(len(found) == 1 for found in by_search.values())
    (((fill, shape),), ((other_fill, other_shape),)) = (tuple(by_search[key]) for key in "01")
    assert fill != other_fill
    assert shape != other_shape
    assert page.locator("#front-line, #other-line").count() == 2
    assert len(page.locator("#front-table tbody tr").all()) == len(looks)
    button = page.locator("#front-table button[data-search='1']").first
    button.click()
    assert page.locator("#front-table tr.chosen").count() == 1
    trial = button.get_attribute("data-trial")
    pressed = page.locator("#scatter .mark[aria-pressed=true]")
    assert (pressed.get_attribute("data-search"), pressed.get_attribute("data-trial")) == (
        "1",
        trial,
    )
    page.locator("#front-table th button", has_text="search").click()
    settle(page)


def test_a_live_page_follows_the_search_and_keeps_what_one_looks_at(
    browser, search, project, tmp_path, monkeypatch
):
    monkeypatch.setattr(live, "PAUSE", 0.0)
    file = project("mine", 60) / "software" / "search_ckpts" / "search.json"
    made = live.LivePage(lambda: find_record("mine", tmp_path / "out"))
    with live.LiveServer(made) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        context = browser.new_context(viewport=WIDE)
        page = context.new_page()
        complaints = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.address)
        page.wait_for_selector("html[data-ready]", state="attached")
        page.locator("#x-axis").select_option("loss")
        page.locator("#x-log").check()
        page.locator("#filter-row").select_option("accuracy")
        page.locator("#filter-from").fill("0.6")
        page.locator("#filter-to").press("Enter")
        page.locator("#design-number").fill("3")
        page.locator("#design-number").press("Enter")
        page.mouse.move(2, 2)
        replace(file, search(140))
        page.locator(".facts dd", has_text="126").first.wait_for()
        page.wait_for_selector("html[data-ready]", state="attached")
        assert page.locator("#x-axis").input_value() == "loss"
        assert page.locator("#x-log").is_checked()
        assert page.locator("#design").get_attribute("data-trial") == "3"
        assert "accuracy" in page.locator("#filter-list").inner_text()
        page.locator("#follow").uncheck()
        replace(file, search(180))
        page.locator("#live-note", has_text="There are new trials.").wait_for()
        assert page.locator(".facts dd", has_text="126").count() == 1
        server.shutdown()
        thread.join()
    page.locator("#live-note", has_text="The server has ended").wait_for()
    context.close()
    assert not complaints


def replace(file, content):
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(file)


def test_a_page_in_a_file_never_asks(show, search):
    page = show(text=report_page(SearchRecord.model_validate(search(20))))
    assert page.locator("#live").count() == 0
