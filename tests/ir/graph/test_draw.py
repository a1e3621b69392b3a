"""What a drawing promises: all of the graph, once, readable, and the same each time."""

import functools
import itertools
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir.graph.draw import BODY, HEAD, STYLES, draw_svg
from chop.ir.graph.layout import Box, Point, lay_out

SVG = "{http://www.w3.org/2000/svg}"


def chain() -> fx.Graph:
    return fx.symbolic_trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))).graph


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


class Branches(nn.Module):
    """Two inputs, three outputs, a constant with many users, and a node that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.w = nn.Parameter(torch.ones(8))

    def forward(self, x, y):
        z = self.a(x) * self.w * torch.sigmoid(self.b(x))
        u = z + y * self.w
        u.size(0)
        p, q = torch.chunk(u * self.w, 2, -1)
        return p + q, u, {"z": z * self.w}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        y = self.norm(x)
        heads = (f(y).view(2, 5, 2, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2)
        return x + self.o(mixed.reshape(2, 5, 8))


def tangle() -> fx.Graph:
    """Edges of all lengths between nodes that are hard to tell apart."""
    chance = random.Random(0)
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(3)]
    for _ in range(60):
        nodes.append(graph.call_function(torch.add, tuple(chance.choices(nodes[-15:], k=2))))
    graph.output(nodes[-4:])
    return graph


def hostile() -> fx.Graph:
    """Names, arguments and attributes that are not XML."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.name = "x<y> & \"z\" 'ü漢'"
    constant = graph.get_attr("w")
    constant.name = "w\x00\ud800\n]]>"
    nameless = functools.partial(torch.add, alpha=2)
    note = {"note": "<title>&amp;</svg>"}
    y = graph.create_node("call_function", nameless, (x, constant), note, name="y" * 200)
    z = graph.call_method("<lambda>", (y, lambda: 0))
    z.name = "a_very_" * 30
    graph.output(z)
    return graph


def traced(model: nn.Module) -> Callable[[], fx.Graph]:
    return lambda: fx.symbolic_trace(model).graph


residual, branches, encoder = traced(Residual()), traced(Branches()), traced(Encoder())
GRAPHS = {"chain": chain, "residual": residual, "branches": branches, "encoder": encoder}
GRAPHS |= {"through": traced(nn.Sequential()), "tangle": tangle, "hostile": hostile}
GRAPHS |= {"empty": fx.Graph}


@pytest.fixture(params=GRAPHS)
def make(request) -> Callable[[], fx.Graph]:
    return GRAPHS[request.param]


@pytest.fixture
def graph(make) -> fx.Graph:
    return make()


@pytest.fixture
def picture(graph) -> "Picture":
    return read(draw_svg(graph))


@dataclass(frozen=True)
class Edge:
    source: str
    target: str
    points: list[Point]


@dataclass(frozen=True)
class Picture:
    """An SVG read back."""

    root: ElementTree.Element
    boxes: dict[str, Box]
    texts: dict[str, list[ElementTree.Element]]
    edges: list[Edge]


def read(svg: str) -> Picture:
    root = ElementTree.fromstring(svg)
    nodes = [group for group in root.iter(f"{SVG}g") if group.get("class") == "node"]
    names = [node.attrib["data-name"] for node in nodes]
    assert len(set(names)) == len(names)
    boxes = [
        Box(*(float(rect.attrib[key]) for key in ("x", "y", "width", "height")))
        for rect in (node.find(f"{SVG}rect") for node in nodes)
    ]
    edges = [
        Edge(path.attrib["data-from"], path.attrib["data-to"], sampled(path.attrib["d"]))
        for path in root.iter(f"{SVG}path")
        if path.get("class") == "edge"
    ]
    texts = {name: node.findall(f"{SVG}text") for name, node in zip(names, nodes, strict=True)}
    return Picture(root, dict(zip(names, boxes, strict=True)), texts, edges)


def sampled(path: str) -> list[Point]:
    """Points along a path of M, V and C commands, close together."""
    points: list[Point] = []
    for command, text in re.findall("([MVC])([^MVC]+)", path):
        numbers = [float(number) for number in text.split()]
        start = points[-1] if points else Point(*numbers)
        if command == "C":
            x1, y1, x2, y2, x3, y3 = numbers
        else:
            x1, y1, x2, y2, x3, y3 = (start.x, numbers[-1]) * 3
        for t in (i / 20 for i in range(21)):
            weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
            xs, ys = (start.x, x1, x2, x3), (start.y, y1, y2, y3)
            points.append(Point(*(sum(map(operator.mul, weights, at)) for at in (xs, ys))))
    return points


def inside(point: Point, box: Box) -> bool:
    return box.left < point.x < box.right and box.top < point.y < box.bottom


def shown(picture: Picture, name: str) -> str:
    return " ".join(text.text or "" for text in picture.texts[name])


def test_each_node_and_each_edge_is_drawn_once(graph, picture) -> None:
    name_of = dict(zip(graph.nodes, picture.boxes, strict=True))
    expected = [(name_of[u], name_of[v]) for v in graph.nodes for u in v.all_input_nodes]
    assert sorted((edge.source, edge.target) for edge in picture.edges) == sorted(expected)


@pytest.mark.sampled(3)
def test_boxes_do_not_overlap(picture) -> None:
    for a, b in itertools.combinations(picture.boxes.values(), 2):
        beside = a.right < b.left or b.right < a.left
        assert beside or a.bottom < b.top or b.bottom < a.top


def test_edges_run_down_from_producer_to_consumer(picture) -> None:
    for edge in picture.edges:
        source, target = picture.boxes[edge.source], picture.boxes[edge.target]
        start, end = edge.points[0], edge.points[-1]
        assert start.y == pytest.approx(source.bottom, abs=0.1)
        assert end.y == pytest.approx(target.top, abs=0.1)
        assert source.left < start.x < source.right
        assert target.left < end.x < target.right
        assert all(b.y - a.y >= -1e-6 for a, b in itertools.pairwise(edge.points))


@pytest.mark.sampled(3)
def test_edges_pass_around_all_boxes(picture) -> None:
    for edge, box in itertools.product(picture.edges, picture.boxes.values()):
        shrunk = Box(box.left, box.top + 0.2, box.width, box.height - 0.4)
        assert not any(inside(point, shrunk) for point in edge.points)


def test_texts_fit_their_boxes(picture) -> None:
    for name, box in picture.boxes.items():
        assert picture.texts[name]
        for text in picture.texts[name]:
            font = HEAD if text.get("font-weight") == "700" else BODY
            assert font.width(text.text or "") <= box.width
            assert box.top < float(text.attrib["y"]) - font.size / 2
            assert float(text.attrib["y"]) < box.bottom


def test_everything_lies_on_a_white_background(picture) -> None:
    width, height = float(picture.root.attrib["width"]), float(picture.root.attrib["height"])
    background = picture.root.find(f"{SVG}rect")
    assert background is not None
    assert background.attrib["fill"] == "#ffffff"
    assert [float(background.attrib[side]) for side in ("width", "height")] == [width, height]
    graph = next(g for g in picture.root.iter(f"{SVG}g") if g.get("class") == "graph")
    left, top = map(float, re.findall(r"[\d.]+", graph.attrib["transform"]))
    for box in picture.boxes.values():
        assert box.left >= 0
        assert left + box.right <= width
        assert top + box.bottom <= height


def test_the_same_graph_gives_the_same_bytes(make, graph) -> None:
    assert draw_svg(graph) == draw_svg(graph) == draw_svg(make())


def test_a_chain_is_straight() -> None:
    assert len({box.middle for box in read(draw_svg(chain())).boxes.values()}) == 1


def test_a_skip_leaves_the_main_path_straight_and_bends_around_it() -> None:
    picture = read(draw_svg(residual()))
    assert len({box.middle for box in picture.boxes.values()}) == 1
    (skip,) = (e for e in picture.edges if (e.source, e.target) == ("x", "add"))
    assert max(point.x for point in skip.points) > picture.boxes["norm"].right


def test_parallel_branches_stand_evenly_about_the_main_path() -> None:
    boxes = read(draw_svg(encoder())).boxes
    q, k, v = (boxes[name].middle for name in "qkv")
    assert k == boxes["norm"].middle == boxes["scaled_dot_product_attention"].middle
    assert q + v == pytest.approx(2 * k, abs=1)  # places are whole pixels


def test_a_constant_stands_just_above_its_first_user() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(5):
        x = graph.call_function(torch.relu, (x,))
    constant = graph.get_attr("w")
    graph.output(graph.call_function(torch.add, (x, constant)))
    boxes = read(draw_svg(graph)).boxes
    assert boxes["w"].top >= boxes["relu_3"].bottom


def test_boxes_say_what_a_node_is() -> None:
    picture = read(draw_svg(branches()))
    assert shown(picture, "a") == "a Linear(in_features=8, out_features=8, bias=True)"
    assert shown(picture, "sigmoid") == "sigmoid sigmoid(b)"
    assert shown(picture, "size") == "size .size(0)"
    assert shown(picture, "w") == "w"


def test_colours_tell_the_kinds_apart_and_the_legend_explains_those_used() -> None:
    root = read(draw_svg(chain())).root
    legend = next(group for group in root.iter(f"{SVG}g") if group.get("class") == "legend")
    labels = [text.text for text in legend.iter(f"{SVG}text")]
    assert labels == ["input", "module with parameters", "module", "output"]
    fills = {
        node.attrib["data-name"]: node.find(f"{SVG}rect").attrib["fill"]
        for node in root.iter(f"{SVG}g")
        if node.get("class") == "node"
    }
    assert fills["_0"] == fills["_2"] == STYLES["parameters"].fill
    assert fills["_1"] == STYLES["call_module"].fill
    assert len({style.fill for style in STYLES.values()}) == len(STYLES)


def luminance(colour: str) -> float:
    """Relative luminance as in WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("kind", STYLES)
def test_text_and_borders_contrast_with_their_ground(kind: str) -> None:
    style = STYLES[kind]
    for font in (HEAD, BODY):  # WCAG 2, level AAA for text, AA for graphics
        assert (luminance(style.fill) + 0.05) / (luminance(font.colour) + 0.05) >= 7
    assert 1.05 / (luminance(style.stroke) + 0.05) >= 3


def test_modules_of_a_graph_without_an_owner_are_names() -> None:
    graph = fx.Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
    assert shown(read(draw_svg(graph)), "layer") == "layer"


def test_long_texts_are_shortened_and_whole_in_the_tooltip() -> None:
    graph = fx.symbolic_trace(nn.Sequential(nn.BatchNorm2d(3, eps=0.123))).graph
    picture = read(draw_svg(graph))
    (node,) = (g for g in picture.root.iter(f"{SVG}g") if g.get("data-name") == "_0")
    module = graph.owning_module.get_submodule("0")
    full = f"BatchNorm2d({module.extra_repr()})"
    assert shown(picture, "_0").endswith(" …")
    assert full in node.find(f"{SVG}title").text.splitlines()


def test_the_picture_has_a_title() -> None:
    title = read(draw_svg(residual())).root.find(f"{SVG}title")
    assert title.text == "Residual: 6 nodes, 6 edges"


def test_hostile_names_are_shown_as_they_are() -> None:
    names = list(read(draw_svg(hostile())).boxes)
    assert names[0] == "x<y> & \"z\" 'ü漢'"
    assert names[1] == "w�� ]]>"


def with_metadata(graph: fx.Graph, name: str, common: dict) -> fx.Graph:
    (node,) = (node for node in graph.nodes if node.name == name)
    node.meta["mase"] = SimpleNamespace(parameters={"common": common})
    return graph


def test_metadata_adds_op_shape_and_formats_other_than_float32() -> None:
    def tensor(kind: str, *precision: int) -> dict:
        return {"shape": [2, 8], "type": kind, "precision": list(precision)}

    args = {
        "data_in_0": tensor("integer", 8, 4),
        "weight": tensor("integer", 8, 4),
        "bias": tensor("float", 32),
        "other": tensor("integer", 6, 3) | {"rounding": "up", "overflow": "wrap"},
        "inplace": False,
    }
    common = {"mase_op": "linear", "args": args, "results": {"data_out_0": tensor("float", 16)}}
    text = shown(read(draw_svg(with_metadata(chain(), "_0", common))), "_0")
    assert "linear → 2×8" in text
    assert "integer(8, 4): data_in_0, weight" in text
    assert "integer(6, 3, up, wrap): other" in text
    assert "float(16): data_out_0" in text
    assert "bias:" not in text
    assert "float(32)" not in text


def test_unfinished_metadata_is_no_obstacle() -> None:
    assert draw_svg(with_metadata(chain(), "_0", {})) == draw_svg(chain())
    result = {"data_out_0": {"type": int, "shape": []}}
    graph = with_metadata(branches(), "size", {"mase_op": "size", "results": result})
    assert shown(read(draw_svg(graph)), "size") == "size .size(0) size → scalar"


def test_edges_that_run_upwards_are_refused() -> None:
    with pytest.raises(ValueError, match="earlier box to a later one"):
        lay_out([(10, 10)] * 2, [(1, 0)])


@pytest.mark.slow
def test_large_graphs_draw() -> None:
    deep = fx.Graph()
    x = deep.placeholder("x")
    for _ in range(1200):  # more than Python may recurse
        x = deep.call_function(torch.relu, (x,))
    deep.output(x)
    assert len(read(draw_svg(deep)).edges) == 1201

    wide = fx.Graph()
    x = wide.call_function(torch.relu, (wide.placeholder("x"),))
    mask = wide.get_attr("mask")
    for _ in range(100):
        y = wide.call_function(torch.relu, (wide.call_function(torch.add, (x, mask)),))
        x = wide.call_function(operator.add, (x, y))
    wide.output(x)
    picture = read(draw_svg(wide))
    assert len(picture.edges) == 100 * 5 + 2
    assert len({picture.boxes[node.name].middle for node in wide.nodes if node is not mask}) == 1


def test_edges_that_skip_many_rows_pass_beside_the_boxes() -> None:
    """A network that returns what each of its layers made."""
    count = 60
    skips = [(i, count - 1) for i in range(count - 2)]
    layout = lay_out([(100, 30)] * count, [*itertools.pairwise(range(count)), *skips])
    assert all(b.top > a.bottom for a, b in itertools.pairwise(layout.boxes))
    sides = set()
    for route in layout.routes[count - 1 :]:
        beside = route[2].x
        assert not layout.boxes[0].left < beside < layout.boxes[0].right
        assert 0 <= beside <= layout.width
        sides.add(beside)
    assert len(sides) == len(skips)
