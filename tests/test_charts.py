"""Charts are well-formed SVG that shows what it was given."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chop.charts import HEIGHT, WIDTH, Axis, Bars, Chart, bar_page, page

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(-1e9, 1e9, allow_nan=False)


def parsed(*charts: Chart) -> ET.Element:
    return ET.fromstring(page(charts))


def texts(root: ET.Element) -> list[str]:
    return [t.text for t in root.iter(f"{SVG}text")]


@given(points=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20))
def test_every_point_lies_inside_the_picture(points):
    root = parsed(Chart("t", "x", "y", {"a": points}))
    (line,) = root.iter(f"{SVG}polyline")
    drawn = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert len(drawn) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)


def test_titles_names_and_axes_are_written_and_escaped():
    root = parsed(Chart("a < b & c", "steps", "loss", {"train": [(0, 1), (1, 2)], "val": [(0, 3)]}))
    assert {"a < b & c", "steps", "loss", "train", "val"} <= set(texts(root))


def test_charts_stand_side_by_side():
    one = Chart("one", "x", "y", {"a": [(0, 0), (1, 1)]})
    root = parsed(one, one)
    assert root.get("width") == str(2 * WIDTH)
    assert len(list(root.iter(f"{SVG}polyline"))) == 2


def test_what_cannot_be_drawn_is_left_out():
    root = parsed(
        Chart("t", "x", "y", {"a": [(0, float("nan")), (1, 2)], "b": [(1, float("inf"))]})
    )
    assert len(list(root.iter(f"{SVG}polyline"))) == 1
    assert "nothing to show" in texts(parsed(Chart("t", "x", "y", {})))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 7000), (0.001, 0.0012), (5, 5)])
def test_ticks_are_round_and_inside(low, high):
    axis = Axis.around([low, high], 0, 100)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 11
    assert all(axis.low <= t <= axis.high for t in ticks)


@given(values=st.dictionaries(st.text("abc_", min_size=1), st.floats(0, 1e12), max_size=20))
def test_bars_are_as_long_as_their_numbers(values):
    root = ET.fromstring(bar_page([Bars("t", values)]))
    bars = [float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("fill") != "white"]
    assert len(bars) == len(values)
    longest = max(values.values(), default=0) or 1
    for drawn, value in zip(bars, values.values(), strict=True):
        assert abs(drawn - max(bars) * value / longest) <= 0.11  # written with one digit
    assert all(0 <= length <= WIDTH for length in bars)


def test_bars_have_their_names_which_may_be_long_and_their_numbers():
    root = ET.fromstring(bar_page([Bars("a < b", {"x" * 40: 12.0}), Bars("none", {})]))
    assert {"a < b", "…" + "x" * 23, "12", "nothing to show"} <= set(texts(root))
    assert root.get("width") == str(2 * WIDTH)
