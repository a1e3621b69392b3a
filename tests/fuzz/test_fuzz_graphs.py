"""Saved graphs: damaged files, odd values in all of them, and nodes that would run code."""

from __future__ import annotations

import json
from random import Random

from .commands import that_loads
from .harness import Sandbox, inputs
from .hostile_graphs import CLASSES, FUNCTIONS, METHODS, hostile_nodes
from .mutations import TOML_VALUES, changed_json, changed_lines, damaged, foreign

GRAPH, STATE, META = "graph.json", "state_dict.safetensors", "node_meta_param.toml"


def write_damaged(random: Random, sandbox: Sandbox) -> None:
    """Damage one of the files, or put another kind of file in its place."""
    file = sandbox.work / "graph" / random.choice((GRAPH, STATE, STATE, META))
    bad = foreign(random) if random.random() < 0.2 else damaged(random, file.read_bytes())
    file.write_bytes(bad)


def write_odd_graph(random: Random, sandbox: Sandbox) -> None:
    """Put odd values into graph.json."""
    file = sandbox.work / "graph" / GRAPH
    file.write_bytes(changed_json(random, file.read_text()))


def write_odd_metadata(random: Random, sandbox: Sandbox) -> None:
    """Put odd values into the metadata of nodes, or move its lines."""
    file = sandbox.work / "graph" / META
    lines = file.read_text().splitlines()
    for _ in range(random.choice((1, 2, 5))):
        place = random.choice([n for n, line in enumerate(lines) if " = " in line])
        lines[place] = f"{lines[place].partition(' = ')[0]} = {random.choice(TOML_VALUES)}"
    lines = changed_lines(random, lines) if random.random() < 0.3 else lines
    file.write_text("\n".join(lines), errors="surrogateescape")


def write_hostile(random: Random, sandbox: Sandbox) -> None:
    """Add nodes that would run code, or name a class or a function that is not for graphs."""
    file = sandbox.work / "graph" / GRAPH
    graph = json.loads(file.read_text())
    way = random.randrange(6)
    if way == 0:
        random.choice(graph["modules"])["class"] = random.choice(CLASSES)
    elif way == 1:
        attributes = random.choice(graph["modules"])["attributes"]
        name = random.choice(("forward", "inplace", "config", "_forward_hooks", "derive", "x"))
        attributes[name] = {"function": random.choice(FUNCTIONS)}
    elif way == 2:
        graph["custom_ops"] = {"functions": {random.choice(METHODS): random.choice(FUNCTIONS)}}
    else:
        graph["nodes"][-1:-1] = hostile_nodes(random, sandbox.marker)
    file.write_text(json.dumps(graph))


@inputs("graph")
def test_a_saved_graph_is_loaded_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    sandbox.take("data.npz", "graph", "transform.toml", "search.toml", "best.ckpt")
    ways = (write_damaged, write_odd_graph, write_odd_graph, write_odd_metadata, write_hostile)
    random.choice(ways)(random, sandbox)
    sandbox.check(*that_loads(random, "graph", "mz"))
