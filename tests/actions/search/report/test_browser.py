"""The page in a real browser: by mouse and by keyboard, in both themes, on a phone."""

import io
import itertools
import re
from collections import Counter

import pytest

from .conftest import PHONE, settle

Image = pytest.importorskip("PIL.Image", reason="needs pillow: run `make test-all`")
pytestmark = [pytest.mark.browser, pytest.mark.slow]


def colours(png: bytes) -> Counter:
    """How often each colour occurs in a screenshot."""
    with Image.open(io.BytesIO(png)) as image:
        return Counter({colour: n for n, colour in image.convert("RGB").getcolors(1 << 24)})


def chosen(page) -> int:
    return int(page.locator("#design").get_attribute("data-trial"))


def column(page, place: int) -> list[float]:
    cells = page.locator(f"#front-table tbody tr > :nth-child({place})")
    return [float(cell.get_attribute("data-value")) for cell in cells.all()]


def rendered(page, name: str) -> tuple[int, ...]:
    """A colour of the theme as red, green and blue."""
    value = page.evaluate(
        f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"
    )
    return tuple(int(value[i : i + 2], 16) for i in (1, 3, 5))


def test_the_front_is_drawn_listed_and_counted(show, search):
    front = search(120)["front"]
    page = show(120)
    marks = page.locator("#scatter .mark")
    assert sorted(int(m.get_attribute("data-trial")) for m in marks.all()) == sorted(front)
    assert page.locator("#front-table tbody tr").count() == len(front)
    assert page.locator("[data-kind=front]").inner_text() == f"Pareto front ({len(front)})"
    assert page.locator("#front-line").get_attribute("d").count("H") == len(front) - 1


def test_pointing_at_a_design_shows_its_number_values_and_config(show, search):
    content = search(120)
    page = show(120)
    trial = content["trials"][content["front"][0]]
    page.locator(f"#scatter .mark[data-trial='{trial['number']}']").hover()
    text = page.locator("#tooltip").inner_text()
    assert f"Trial {trial['number']}, on the front" in text
    assert f"{trial['software_metrics']['accuracy']:.4f}" in text
    name, width = next(iter(trial["params"].items()))
    assert re.search(rf"{name.replace('/config/', ' ')}\s+{width}\b", text)
    page.mouse.move(5, 5)
    assert page.locator("#tooltip").is_hidden()


def test_a_dominated_design_can_be_pointed_at_and_chosen(show):
    page = show(400)
    box = page.locator("#scatter").bounding_box()
    seen = set()
    for x, y in itertools.product(range(80, 700, 40), range(40, 380, 20)):
        page.mouse.move(box["x"] + x, box["y"] + y)
        if page.locator("#tooltip").is_hidden():
            continue
        text = page.locator("#tooltip strong").inner_text()
        seen.add(text.partition(", ")[2])
        if text.endswith("dominated"):
            page.mouse.click(box["x"] + x, box["y"] + y)
            assert f"Trial {chosen(page)}, dominated" == text
            break
    assert "dominated" in seen


def test_the_keyboard_goes_along_the_front_and_chooses(show, search):
    content = search(120)
    page = show(120)
    bits = {t["number"]: t["hardware_metrics"].get("average_bitwidth") for t in content["trials"]}
    order = sorted(content["front"], key=bits.get)
    page.locator("#scatter-svg").focus()
    page.keyboard.press("Tab")
    focused = "Number(document.activeElement.dataset.trial)"
    assert page.evaluate(focused) == content["chosen"]
    page.keyboard.press("Home")
    assert page.evaluate(focused) == order[0]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == order[1]
    assert f"Trial {order[1]}," in page.locator("#tooltip").inner_text()
    assert f"Trial {order[1]}," in page.evaluate("document.activeElement.ariaLabel")
    page.keyboard.press("Enter")
    assert chosen(page) == order[1]
    page.keyboard.press("Escape")
    assert page.locator("#tooltip").is_hidden()


def test_the_table_sorts_by_its_heads_from_the_keyboard(show):
    page = show(120)
    accuracy = column(page, 2)
    assert accuracy == sorted(accuracy, reverse=True)
    heads = page.locator("#front-table thead th")
    assert heads.nth(1).get_attribute("aria-sort") == "descending"
    heads.nth(2).locator("button").focus()
    page.keyboard.press("Enter")
    assert heads.nth(2).get_attribute("aria-sort") == "ascending"
    assert heads.nth(1).get_attribute("aria-sort") == "none"
    bits = column(page, 3)
    assert bits == sorted(bits)
    page.keyboard.press("Space")
    assert column(page, 3) == bits[::-1]


def test_choosing_changes_the_design_its_command_and_its_layers(show, search):
    content = search(120)
    page = show(120)
    assert chosen(page) == content["chosen"]
    other = next(n for n in content["front"] if n != content["chosen"])
    page.locator(f"#front-table button[data-trial='{other}']").click()
    assert chosen(page) == other
    assert page.locator("#design pre").inner_text().endswith(f"best.ckpt --apply {other}")
    assert page.locator("#front-table tr.chosen").count() == 1
    rows = page.locator("#layers-body tbody tr")
    for row, facts in zip(rows.all(), content["trials"][other]["layers"].values(), strict=True):
        widths = [int(cell.inner_text()) for cell in row.locator("td").all()]
        assert widths == [facts["data_in_bits"], facts["weight_bits"]]
        bars = [bar.bounding_box()["width"] for bar in row.locator("rect").all()]
        assert bars[0] / bars[1] == pytest.approx(widths[0] / widths[1], rel=0.05)


def test_any_completed_trial_can_be_typed_in(show):
    page = show(120)
    number = page.locator("#design-number")
    number.fill("3")
    number.press("Enter")
    assert chosen(page) == 3
    number.fill("7")  # which has failed
    number.press("Enter")
    assert "no completed trial 7" in page.locator("#design-note").inner_text()
    assert chosen(page) == 3


def test_the_command_is_copied(show):
    page = show(120)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("#front-table .copy").first
    button.click()
    page.locator("#front-table .copy", has_text="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("ch search --config ")
    assert copied.endswith(f" --apply {button.get_attribute('data-apply')}")


def test_other_axes_redraw_the_chart_and_join_only_what_has_a_direction(show):
    page = show(120)
    before = page.locator("#scatter .mark").first.get_attribute("transform")
    page.locator("#x-axis").select_option("memory_density")
    assert page.locator("#scatter .mark").first.get_attribute("transform") != before
    assert page.locator("#front-line").count() == 0
    assert "memory_density" in page.locator("#scatter").get_attribute("aria-label")


def test_a_search_for_one_number_opens_on_its_metrics_and_calls_the_best_so(show):
    page = show(120, summed="maximize")
    axes = [page.locator(f"#{side}-axis").input_value() for side in "xy"]
    assert axes == ["average_bitwidth", "accuracy"]
    assert page.locator("[data-kind=front]").inner_text() == "best (1)"
    assert page.locator("#pareto").inner_text() == "All designs"
    assert page.locator("#curves h3").all_inner_texts() == ["sum of scaled metrics"]


def test_numbers_are_grouped_and_signed_as_in_the_tables(show, search):
    content = search(20)
    for trial in content["trials"]:
        trial["hardware_metrics"] = {"average_bitwidth": 4.0, "bitops": -1234567.5}
    text = show(content=content).locator("#design-body").inner_text()
    assert "−1,234,568" in text


def test_shapes_tell_the_kinds_apart(show):
    page = show(300)
    for kind in ("infeasible", "pruned", "baseline"):
        assert page.locator(f"[data-kind={kind}]").count() == 1
    shapes = [p.get_attribute("d") for p in page.locator("#scatter-legend path").all()]
    assert len(shapes) == len(set(shapes)) == 5


def test_pointing_at_a_line_through_the_rows_highlights_it(show):
    page = show(60)
    box = page.locator("#parallel")
    box.scroll_into_view_if_needed()
    assert page.locator("#parallel-chosen").get_attribute("d").startswith("M")
    place = box.bounding_box()
    for x in range(300, 1100, 20):
        page.mouse.move(place["x"] + x, place["y"] + 55)
        if page.locator("#parallel-hover").get_attribute("d"):
            break
    assert page.locator("#parallel-hover").get_attribute("d").startswith("M")
    assert page.locator("#tooltip").is_visible()


def test_curves_end_at_the_best(show, search):
    content = search(120)
    page = show(120)
    done = [t for t in content["trials"] if t["values"] and t["feasible"]]
    best = max(t["software_metrics"]["accuracy"] for t in done)
    panels = page.locator("#curves > div")
    assert panels.count() == 3
    assert f"{best:.4f} from trial" in panels.first.locator("[role=img]").get_attribute(
        "aria-label"
    )


def test_failures_are_folded_and_open(show):
    page = show(120)
    trace = page.locator(".failure pre").first
    assert trace.is_hidden()
    page.locator(".failure summary").first.press("Enter")
    assert "Traceback (most recent call last)" in trace.inner_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 0},
        {"trials": 1},
        {"objectives": 1},
        {"objectives": 3},
        {"summed": "maximize"},
        {"baseline": None, "importance": {}, "front": [], "chosen": None},
    ],
)
def test_unusual_searches_are_drawn_without_complaint(show, changes):
    page = show(**{"trials": 40} | changes)
    assert page.locator("#scatter").inner_text() or page.locator("#scatter svg").count()


def test_values_that_look_like_code_stay_text(show, search):
    evil = "</script><img src=x onerror=document.title='hacked'>"
    content = search(30, model=evil)
    content["trials"][content["chosen"]]["config"] = {evil: {"config": {"name": evil}}}
    content["trials"][content["chosen"]]["params"] = {evil: evil}
    page = show(content=content)
    assert page.locator("img").count() == 0
    assert evil in page.locator("h1").inner_text()
    assert evil in page.locator("#design-body").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_neither_blank_nor_in_the_other_theme(show, scheme):
    page = show(scheme=scheme)
    found = colours(page.screenshot())
    paper = rendered(page, "paper")
    assert found.most_common(1)[0][0] == paper
    assert (sum(paper) > 600) is (scheme == "light")
    assert found[rendered(page, "front")] > 500
    assert found.total() - found[paper] > 0.02 * found.total()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_the_contrast_that_reading_needs(show, scheme):
    page = show(5, scheme=scheme)

    def light(name):
        shares = [c / 255 for c in rendered(page, name)]
        r, g, b = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    def contrast(a, b):
        high, low = sorted([light(a), light(b)], reverse=True)
        return (high + 0.05) / (low + 0.05)

    texts = ["ink", "quiet", "front", "chosen", "infeasible"]
    assert [t for t in texts for under in ("paper", "raised") if contrast(t, under) < 4.5] == []
    assert contrast("ink", "note") >= 4.5
    marks = ["front", "dominated", "infeasible", "pruned", "baseline", "chosen"]
    assert [mark for mark in marks if contrast(mark, "paper") < 3] == []


@pytest.mark.parametrize("trials", [0, 120])
def test_a_phone_never_scrolls_sideways(show, trials):
    names = {f"a_very_long_name_of_a_layer_in_a_deep_network_{i}_": "linear" for i in range(3)}
    page = show(trials, viewport=PHONE, layers=names, command="ch search --config " + "x" * 90)
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for cell in page.locator("#layers-body td").all():
        place, text = cell.bounding_box(), cell.locator(".n").bounding_box()
        assert text["x"] + text["width"] <= place["x"] + place["width"] <= PHONE["width"]
    assert colours(page.screenshot()).total() == PHONE["width"] * PHONE["height"]


def test_a_narrower_window_draws_the_charts_anew(show):
    page = show()
    page.set_viewport_size(PHONE)
    page.locator("#scatter svg[width='328']").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_ten_thousand_trials_can_be_used(show):
    page = show(10_000)
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    page.locator("#scatter .mark").first.hover()
    assert page.locator("#tooltip").is_visible()
