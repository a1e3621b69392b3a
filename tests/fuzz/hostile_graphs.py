"""Nodes for graph.json that try to reach the file system, a process or a private attribute."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

Node = dict[str, Any]
FUNCTIONS = (
    *("builtins.eval", "builtins.exec", "builtins.open", "builtins.getattr", "builtins.max"),
    *("builtins.setattr", "builtins.vars", "builtins.min", "builtins.map", "builtins.__import__"),
    *("os.system", "os:system", "posix:system", "subprocess:call", "shutil:rmtree", "pathlib:Path"),
    *("operator.methodcaller", "operator.attrgetter", "operator.call", "operator.setitem"),
    *("torch.load", "torch.save", "torch.from_file", "torch.hub:load", "torch.ops.aten.from_file"),
    *(
        "torch.Tensor.apply_",
        "torch.Tensor.map_",
        "torch.Tensor.register_hook",
        "torch.Tensor.numpy",
    ),
    *("torch.set_default_device", "torch.compile", "torch.vmap", "torch.library:define"),
    *(
        "chop.system.files:write_text",
        "chop.actions.user_code:import_user_file",
        "chop.checkpoints:read_torch_file",
    ),
    *("numpy:save", "numpy:fromfile", "pickle:loads", "runpy:run_path", "torch.jit:load"),
)
METHODS = (
    *("apply_", "map_", "map2_", "register_hook", "numpy", "tofile", "sort", "share_memory_"),
    *("__class__", "__reduce_ex__", "__setattr__", "__getattribute__", "backward", "to", "format"),
    *("storage", "untyped_storage", "retain_grad", "module_load", "type", "pin_memory"),
)
CLASSES = (
    *("os:_wrap_close", "subprocess:Popen", "pathlib:Path", "torch.fx.graph_module:GraphModule"),
    *("torch.jit._script:RecursiveScriptModule", "torch.nn.modules.lazy:LazyModuleMixin"),
    *(
        "torch.nn.parallel.data_parallel:DataParallel",
        "chop.training.loop:Trainer",
        "builtins:type",
    ),
)


def node(name: str, op: str, target: str, *args: Any, **kwargs: Any) -> Node:
    """Return a row of `nodes` in graph.json."""
    return {"name": name, "op": op, "target": target, "args": list(args), "kwargs": kwargs}


def call(name: str, function: str, *args: Any, **kwargs: Any) -> Node:
    return node(name, "call_function", function, *args, **kwargs)


def ref(name: str) -> dict[str, str]:
    return {"node": name}


def computed_attribute(name: str, owner: str, attribute: str) -> list[Node]:
    """Ask for an attribute by a name that is put together when the graph runs."""
    middle = len(attribute) // 2
    first, last = attribute[:middle], attribute[middle:]
    text = call(f"text_{name}", "operator.add", first, last)
    return [text, call(name, "builtins.getattr", ref(owner), ref(f"text_{name}"))]


def run_code(marker: Path) -> list[Node]:
    """Reach `eval` by private attributes of a method, and have `max` call it."""
    return [
        call("method", "builtins.getattr", ref("x"), "backward"),
        *computed_attribute("function", "method", "__func__"),
        *computed_attribute("scope", "function", "__globals__"),
        call("builtins_", "operator.getitem", ref("scope"), "__builtins__"),
        call("eval_", "operator.getitem", ref("builtins_"), "eval"),
        call("run", "builtins.max", [f"open({str(marker)!r}, 'w').close()"], key=ref("eval_")),
    ]


def write_file(marker: Path) -> list[Node]:
    """Write a file by public names alone: `numpy().tofile`, called by `max`."""
    return [
        node("plain", "call_method", "detach", ref("x")),
        node("array", "call_method", "numpy", ref("plain")),
        call("write", "builtins.getattr", ref("array"), "tofile"),
        call("run", "builtins.max", [str(marker)], key=ref("write")),
    ]


def sort_by(marker: Path) -> list[Node]:
    """The same by the `sort` of a list."""
    *head, _ = write_file(marker)
    return [*head, node("run", "call_method", "sort", [str(marker)], key=ref("write"))]


def random_calls(random: Random, marker: Path) -> list[Node]:
    """Return calls of functions that a graph may not call, with functions as arguments."""
    code = f"open({str(marker)!r}, 'w').close()"
    rows: list[Node] = []
    for number in range(random.randint(1, 4)):
        known = ["x", *(row["name"] for row in rows)]
        values = [ref(random.choice(known)), code, str(marker), [code], {"tuple": [str(marker)]}]
        values += [{"function": random.choice(FUNCTIONS)}, {"function": "torch.relu"}, 1]
        args = random.choices(values, k=random.randint(0, 3))
        kwargs = {random.choice(("key", "default", "file", "out")): random.choice(values)}
        target, op = random.choice(FUNCTIONS), "call_function"
        if random.random() < 0.4:
            target, op, args = random.choice(METHODS), "call_method", [ref("x"), *args]
        some = kwargs if random.random() < 0.3 else {}
        rows.append(node(f"call_{number}", op, target, *args, **some))
    return rows


def hostile_nodes(random: Random, marker: Path) -> list[Node]:
    """Return nodes that would run code or write a file."""
    if random.random() < 0.5:
        return random_calls(random, marker)
    return random.choice((run_code, write_file, sort_by))(marker)
