"""`transform`: run passes over a model in the order of a file, and save what comes out."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError, RunConfig
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.files import write_text
from chop.registry import UnknownName, nearest
from chop.tools.config_load import convert_str_na_to_none, load_config

if TYPE_CHECKING:  # torch is imported when there is work to do
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes.base import GraphPass
    from chop.training.evaluate import Score

logger = logging.getLogger(__name__)

STYLES = ("graph", "module")
# names of passes in older files
ALIASES = {"remove_prune_wrappers": "prune_detach_hook"}
# where passes write, in the folder of the transform, unless the file says otherwise
PLACES = {
    ("report_graph", "file_name"): "report_graph.txt",
    ("report_node_meta_param", "save_path"): "report",
    ("save_mase_graph", "save_dir"): "saved_mase_graph",
    ("save_node_meta_param", "save_path"): "saved_node_meta_param",
}
WRITES = ("file_name", "save_dir", "save_path")  # options that name a file or a folder
# which split an input generator draws from, where it is not the training data
GENERATORS = {"prune": "val"}

Scorer = Callable[[Any], Any]


@dataclass(frozen=True)
class Step:
    """One pass with its options; `label` tells two runs of a pass apart."""

    label: str
    run: GraphPass
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.run.name


@dataclass
class Result:
    """What a transform has done."""

    graph: Any  # a MaseGraph, or the model in the module style
    rows: list[dict[str, Any]] = field(default_factory=list)  # one for each pass
    before: Score | None = None
    after: Score | None = None


# --- what a file asks for


@dataclass(frozen=True)
class Plan:
    """A whole file, checked."""

    steps: list[Step]
    style: str
    cf_args: dict[str, Any]


def plan_of(config: Mapping[str, Any], folder: Path | None, where: str = "") -> Plan:
    """The passes of a configuration, all of whose mistakes are said at once; `where` they are."""
    settings = config.get("transform") or {}
    style = settings.get("style", "graph")
    strange = [key for key in settings if key != "style"]
    problems = [f"transform has no key {key!r}; it has 'style'" for key in strange]
    if style not in STYLES:
        raise ConfigError(f"{where}transform.style is one of {', '.join(STYLES)}, not {style!r}")
    steps: list[Step] = []
    for name, options in _listed(config.get("passes") or {}, where):
        try:
            steps.append(_step(name, options, style, folder, steps))
        except (UnknownName, TypeError, ValueError) as error:
            problems.append(f"passes: {error}")
    if not steps and not problems:
        problems.append("passes: there is nothing to do; add a table such as [passes.quantize]")
    if problems:
        raise ConfigError(*(where + problem for problem in problems))
    return Plan(steps, style, dict(config.get("cf_args") or {}))


def _listed(passes: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """`[passes.x]` tables, or `[[passes]]` entries, each of which has a `name`."""
    if isinstance(passes, Mapping):
        for name, options in passes.items():
            if not isinstance(options, Mapping):
                raise ConfigError(
                    f"{where}passes.{name} is a table of options, not {options!r:.40}"
                )
        return [(name, dict(options)) for name, options in passes.items()]
    if not isinstance(passes, list):
        raise ConfigError(f"{where}passes holds tables, not {passes!r:.40}")
    for i, entry in enumerate(passes):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ConfigError(
                f'{where}passes: entry {i + 1} needs the name of a pass: name = "quantize"'
            )
    return [(e["name"], {k: v for k, v in e.items() if k != "name"}) for e in passes]


def _step(
    name: str, options: dict[str, Any], style: str, folder: Path | None, earlier: list[Step]
) -> Step:
    from chop.passes.base import PASSES as GRAPH_PASSES
    from chop.passes.module.base import PASSES as MODULE_PASSES

    registry: Mapping[str, GraphPass] = GRAPH_PASSES if style == "graph" else MODULE_PASSES
    if name not in registry and ALIASES.get(name) in registry:
        name = ALIASES[name]
    short = _short(name)
    run = registry[short if short in registry else name]
    options = _places(run, folder) | options
    comes = {"input_generator": ()} if "input_generator" in run.options else {}
    run.check(comes | options)  # batches of the training data come with the run
    if run.name == "quantize":
        _check_formats(options)
    again = sum(step.name == run.name for step in earlier)
    return Step(f"{run.name}_{again}" if again else run.name, run, options)


def _short(name: str) -> str:
    """A pass may be called by its function: quantize_transform_pass."""
    for kind in ("analysis", "transform", "interface"):
        name = name.removesuffix(f"_{kind}_pass")
    return name


def _places(run: GraphPass, folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {}
    return {key: str(folder / file) for (name, key), file in PLACES.items() if name == run.name}


def _check_formats(options: Mapping[str, Any]) -> None:
    """Number formats can be checked without a graph, and so can names of ops."""
    from chop.ir.ops import OPS
    from chop.passes.graph.transforms.quantize.quantize import IGNORED, node_config

    for key, table in options.items():
        if key == "by" or key in IGNORED:
            continue
        node_config(key, table)
        if options["by"] == "type" and key != "default" and key not in OPS:
            near = nearest(key, OPS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"pass 'quantize': unknown op {key!r}{hint}")


# --- doing it


def transform(
    model: nn.Module,
    model_info: Any,
    model_name: str,
    data_module: Any,
    task: str,
    config: str | Path | Mapping[str, Any],
    save_dir: str | Path | None = None,
    load_name: str | None = None,
    load_type: str | None = None,
    accelerator: str = "auto",
) -> MaseGraph:
    """Run the passes of `config`, a TOML file or a dict, as the labs call it; returns the graph.

    In the module style, the transformed model is returned instead.
    """
    from chop.log import show_logs_unless_configured

    show_logs_unless_configured()
    table = convert_str_na_to_none(config) if isinstance(config, Mapping) else load_config(config)
    folder = Path(save_dir) if save_dir is not None else None
    plan = plan_of(table, folder)
    source = Source(model, model_info, model_name, data_module, task, load_name, load_type or "mz")
    graph: MaseGraph = carry_out(plan, source, folder, accelerator).graph
    return graph


@dataclass(frozen=True)
class Source:
    """What is transformed: a model, its data, and where its weights come from."""

    model: nn.Module
    model_info: Any
    model_name: str
    data_module: Any
    task: str
    load_name: str | None
    load_type: str


def carry_out(
    plan: Plan,
    source: Source,
    folder: Path | None,
    accelerator: str,
    score: Scorer | None = None,
) -> Result:
    """Load, prepare, run every pass, and save to `folder`; `score` looks at both ends."""
    device = _device(accelerator)
    data = source.data_module
    if data.train_dataset is None:
        data.prepare_data()
        data.setup("fit")
    whole = plan.style == "module"
    subject = _loaded_model(source, device) if whole else _ready_graph(source, plan.cf_args, device)
    result = Result(subject)
    if score is not None:
        result.before = score(_model(subject))
    for step in plan.steps:
        result.graph = _run(step, result, source, folder)
    if score is not None:
        result.after = score(_model(result.graph))
    _report(result, folder)
    if folder is not None:
        _save(result.graph, folder / "transformed_ckpt")
    return result


def _device(accelerator: str) -> Any:
    from chop.tools.utils import parse_accelerator

    try:
        return parse_accelerator(accelerator)
    except RuntimeError as error:  # a machine without a GPU is no fault of ours
        raise ValueError(str(error)) from error


def _loaded_model(source: Source, device: Any) -> nn.Module:
    from chop.checkpoints import load_model

    model = source.model
    if source.load_name is not None:
        model = load_model(source.load_name, source.load_type, model)
    return model.to(device)


def ready_graph(source: Source, cf_args: dict[str, Any], accelerator: str) -> MaseGraph:
    """The graph of a model with metadata, on its device."""
    return _ready_graph(source, cf_args, _device(accelerator))


def _ready_graph(source: Source, cf_args: dict[str, Any], device: Any) -> MaseGraph:
    """The graph with metadata: loaded, or traced and run once on a batch of the training data."""
    from chop.checkpoints import is_saved_graph, load_graph
    from chop.passes import Pipeline
    from chop.passes.base import has_metadata
    from chop.tools.get_input import get_cf_args, get_dummy_input

    saved = source.load_type == "mz" and source.load_name and is_saved_graph(source.load_name)
    if saved:
        graph = load_graph(str(source.load_name), device)
        if all(has_metadata(node, "common") for node in graph.nodes):
            return graph
    else:
        model = _loaded_model(source, device)
        frozen = get_cf_args(source.model_info, source.task, model) | cf_args
        graph = _traced(model, frozen)
    dummy_in = get_dummy_input(source.model_info, source.data_module, source.task, device)
    dummy_in |= getattr(graph.model, "additional_inputs", {})
    # values of a whole batch would make the saved metadata larger than the model
    about = {"dummy_in": dummy_in, "add_value": False}
    steps = ["init_metadata", ("add_common_metadata", about), "add_software_metadata"]
    return Pipeline(steps)(graph)[0]  # type: ignore[arg-type]


def _traced(model: nn.Module, frozen: dict[str, Any]) -> MaseGraph:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.ir.graph.tracer import TraceError

    try:
        return MaseGraph(model, cf_args=frozen)
    except TraceError as error:
        raise ValueError(f'{error}; in a file: [transform] style = "module"') from error


def _run(step: Step, result: Result, source: Source, folder: Path | None) -> Any:
    from chop.passes import run_pass
    from chop.passes.module.base import ModulePass

    before, start = _traits(result.graph), time.perf_counter()
    options = step.options | _injected(step, source, result.graph)
    if isinstance(step.run, ModulePass):
        subject, info = step.run(result.graph, options)
    elif step.name == "quantize":
        subject, info = _quantize(step, result.graph, options, folder)
    else:
        subject, info = run_pass(step.run, result.graph, options)
    seconds = time.perf_counter() - start
    effect = _effect(before, _traits(subject), info, _written(options))
    logger.debug("pass %s took %.3f s: %s", step.label, seconds, effect)
    result.rows.append(
        {"Pass": step.label, "Kind": step.run.kind, "Seconds": seconds, "Effect": effect}
    )
    return subject


def _quantize(
    step: Step, graph: MaseGraph, options: dict[str, Any], folder: Path | None
) -> tuple[MaseGraph, dict[str, Any]]:
    """Quantize, and compare with what was there before."""
    from chop.passes import run_pass

    original = graph.clone()
    graph, info = run_pass(step.run, graph, options)
    tables = {"save_dir": folder / step.label} if folder is not None else {}
    run_pass("summarize_quantization", graph, {"original_graph": original, **tables})
    return graph, info


def _injected(step: Step, source: Source, subject: Any) -> dict[str, Any]:
    """What a file cannot hold."""
    from chop.tools.get_input import InputGenerator, get_dummy_input

    found: dict[str, Any] = {}
    if "input_generator" in step.run.options and "input_generator" not in step.options:
        split = GENERATORS.get(step.name, "train")
        found["input_generator"] = InputGenerator(
            source.model_info, source.data_module, source.task, split
        )
    if "dummy_in" in step.run.options and "dummy_in" not in step.options:
        device = next((p.device for p in _model(subject).parameters()), "cpu")
        found["dummy_in"] = get_dummy_input(
            source.model_info, source.data_module, source.task, device
        )
    if "model_name" in step.run.options and "model_name" not in step.options:
        found["model_name"] = source.model_name
    return found


def _model(subject: Any) -> Any:
    from chop.ir.graph.mase_graph import MaseGraph

    return subject.model if isinstance(subject, MaseGraph) else subject


@dataclass(frozen=True)
class Traits:
    """What a pass may change, as far as a line can tell."""

    nodes: list[Any]
    layers: dict[str, str]
    parameters: int


def _traits(subject: Any) -> Traits:
    from chop.ir.graph.mase_graph import MaseGraph

    model = _model(subject)
    nodes = subject.nodes if isinstance(subject, MaseGraph) else ()
    return Traits(
        [(node.name, node.op, str(node.target)) for node in nodes],
        {name: str(module) for name, module in model.named_modules() if not module._modules},
        sum(parameter.numel() for parameter in model.parameters()),
    )


def _written(options: Mapping[str, Any]) -> list[str]:
    """The files and folders that a pass was told to write."""
    paths = [value for key, value in options.items() if key in WRITES]
    return [Path(path).name for path in paths if isinstance(path, str | Path)]


def _effect(before: Traits, after: Traits, info: Mapping[str, Any], files: list[str]) -> str:
    """What a pass did, in a few words."""
    said = []
    kept = before.layers.keys() & after.layers.keys()
    changed = sum(before.layers[name] != after.layers[name] for name in kept)
    lists = [(key, value) for key, value in info.items() if isinstance(value, list)]
    said += [f"{len(value)} {key}" for key, value in lists[:1]]
    if changed and not lists:
        said.append(f"{changed} layers changed")
    for what, one, two in (
        ("layers", len(before.layers), len(after.layers)),
        ("nodes", len(before.nodes), len(after.nodes)),
        ("parameters", before.parameters, after.parameters),
    ):
        if one != two:
            said.append(f"{one:,} -> {two:,} {what}")
    said += [f"wrote {file}" for file in files]
    said += [
        f"{key} = {value:.6g}"
        for key, value in info.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ][:3]
    weights = info.get("weight")
    if isinstance(weights, Mapping) and "total" in weights:
        total = weights["total"]
        said.append(f"{total['pruned']:,} of {total['total']:,} weights pruned")
    return ", ".join(said) or "looked on"


# --- what is left behind


def _report(result: Result, folder: Path | None) -> None:
    from tabulate import tabulate

    shown = [row | {"Seconds": f"{row['Seconds']:.3f}"} for row in result.rows]
    table = tabulate(shown, headers="keys", tablefmt="orgtbl", disable_numparse=True)
    logger.info("Passes:")
    logger.info("\n%s", table)
    scores = _scores(result)
    if scores:
        logger.info("Before and after:")
        logger.info("\n%s", tabulate(scores, headers="keys", tablefmt="orgtbl", floatfmt=".6g"))
    if folder is not None:
        content = {"passes": result.rows, "scores": scores}
        write_text(folder / "transform.json", json.dumps(content, indent=2) + "\n")


def _scores(result: Result) -> list[dict[str, Any]]:
    if result.before is None or result.after is None:
        return []
    return [
        {
            "Metric": metric,
            "Before": getattr(result.before, metric),
            "After": getattr(result.after, metric),
            "Difference": getattr(result.after, metric) - getattr(result.before, metric),
        }
        for metric in ("accuracy", "loss")
    ]


def _save(subject: Any, folder: Path) -> None:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes.graph import save_mase_graph_interface_pass

    if isinstance(subject, MaseGraph):
        save_mase_graph_interface_pass(subject, {"save_dir": folder})
        return
    from chop.checkpoints import save_state_dict

    logger.info("Saved state dict to %s", save_state_dict(subject, folder))


def run_transform(config: RunConfig, project: Project) -> None:
    """`ch transform`."""
    folder = project.software / "transform"
    table = {"passes": config.passes, "transform": config.transform, "cf_args": config.cf_args}
    plan = plan_of(table, folder, f"{config.config}: ")
    model, info, data_module = model_and_data(config)
    project.create()
    logger.info("Transforming model '%s'...", config.model)
    source = Source(
        model,
        info,
        str(config.model),
        data_module,
        config.task,
        config.load_name,
        config.load_type,
    )
    score = _scorer(config, data_module) if config.to_test else None
    carry_out(plan, source, folder, config.accelerator, score)
    logger.info("Transformation is completed")


def _scorer(config: RunConfig, data_module: Any) -> Scorer:
    from chop.actions.test import scored
    from chop.actions.train import options_of

    options = options_of(config)
    splits = data_module.dataset_info.available_splits
    split = "test" if "test" in splits else "validation"
    return lambda model: scored(model, data_module, split, options)
