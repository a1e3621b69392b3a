"""Load the weights of a model from files, without running code from them."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.saved_files import has_saved_modules, is_saved_graph
from chop.project_networks import Made, ProjectNetwork, is_saved, networks_of
from chop.system.files import broken_link, read_json, restore_folder
from chop.system.plain_tensors import load_plain, why_not_plain, why_unreadable

logger = logging.getLogger(__name__)

OLD_GRAPH, OLD_WEIGHTS = "graph_module.mz", "state_dict.pt"  # files of older versions
# usual keys of a state_dict in a checkpoint
# keys of what training scripts save, averaged weights last
WRAPPERS = (
    *("state_dict", "model_state_dict", "model", "net", "network", "weights", "params"),
    *("ema", "model_ema", "ema_state_dict", "state_dict_ema"),
)
LIGHTNING = "pytorch-lightning_version"  # a key that only Lightning's checkpoints have
IN_NAMES = ("module", "_orig_mod")  # what DataParallel and torch.compile put into names of weights
COUNTER = "num_batches_tracked"  # of batch norms, which files of some programs do not have
State = Mapping[str, Tensor]
MAX_NAMES = 4  # of weights in a message
HF_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


SAVE_WEIGHTS = "save a state_dict with torch.save(model.state_dict(), …)"
RUNS_CODE = "reading it would run code from it"


class UnreadableFile(ValueError):
    """A file that torch cannot read, and why."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_torch_file(file: Path) -> Any:
    """Read what `torch.save` wrote, to the CPU; refuse a file that would run code."""
    try:
        return load_plain(file)
    except pickle.UnpicklingError as error:
        raise UnreadableFile(
            f"{file} is damaged or not a checkpoint, or {RUNS_CODE}; {SAVE_WEIGHTS} and use "
            f"`load_type='pt'`",
            RUNS_CODE,
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # on bytes that are not a pickle, torch can fail in any way
        reason = why_unreadable(error)
        raise UnreadableFile(
            f"{file} is damaged or not a checkpoint ({reason}); give a file that "
            f"torch.save wrote, or copy it again",
            reason,
        ) from error


@contextlib.contextmanager
def _described_as(file: Path, wanted: str) -> Iterator[None]:
    """Context in which the error for an unreadable file names what its type should be."""
    try:
        yield
    except UnreadableFile as error:
        first = "copy it again if it was one"
        if error.reason == RUNS_CODE:  # as of a whole module
            first = f"{SAVE_WEIGHTS} and use `load_type='pt'`"
        raise UnreadableFile(
            f"{file} is damaged or not a checkpoint ({error.reason}); {first}, or give {wanted} or "
            f"the `load_type` of this file",
            error.reason,
        ) from error


def _of_older_mase(folder: Path) -> str:
    """Return what can be done with a graph that an older MASE has saved as a pickle."""
    return (
        f"{folder} was saved by an older MASE as a pickle, {OLD_GRAPH}, and reading it would run "
        f"code from it; transform the model again, or load the weights alone from "
        f"{folder / OLD_WEIGHTS} with `load_type='pt'`"
    )


def _pt(file: Path) -> State:
    """Read the weights in a file of any kind, which its content tells."""
    if file.suffix == ".safetensors" or _is_safetensors(file):
        return _safetensors(file)
    content = read_torch_file(file)
    if isinstance(content, Mapping) and LIGHTNING in content and "state_dict" in content:
        return _of_lightning(content, file)
    for _ in WRAPPERS if isinstance(content, Mapping) else ():  # a dict may contain itself
        inner = (content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping))
        content = next(inner, content)
    return _tensors(content, file)


def _pl(file: Path) -> State:
    """Read the weights of the wrapped model, without other states such as metrics."""
    if file.suffix != ".ckpt":
        logger.warning("%s does not end in .ckpt; is it a Lightning checkpoint?", file)
    content = read_torch_file(file)
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping):
        raise ValueError(
            f"{file} is not a Lightning checkpoint, as it has no state_dict; try `load_type='pt'`"
        )
    return _of_lightning(content, file)


def _of_lightning(content: Mapping[str, Any], file: Path) -> State:
    state = content["state_dict"]
    options = content.get("hyper_parameters")
    options = options if isinstance(options, Mapping) else {}  # other programs may store anything
    if options.get("load_type") == "mz" and options.get("load_name"):
        logger.warning(
            "%s holds the weights of a transformed network without its number formats and masks; "
            "load the directory transformed_ckpt beside it instead (`load_type='mz'`)",
            file,
        )
    keys = state if isinstance(state, Mapping) else ()
    names = [key for key in keys if isinstance(key, str) and key.startswith("model.")]
    if not names:
        raise ValueError(f"{file} has no weights that begin with 'model.'; try `load_type='pt'`")
    return _tensors({key.removeprefix("model."): state[key] for key in names}, file)


def _mz(file: Path) -> State:
    if file.name == OLD_GRAPH:
        raise ValueError(_of_older_mase(file.parent))
    if not file.is_dir():
        with _described_as(file, "the directory of a graph that `ch transform` saved"):
            return _pt(file)
    if (file / OLD_GRAPH).exists():
        raise ValueError(_of_older_mase(file))
    if (file / "node_meta_param.toml").exists():
        raise ValueError(f"{file} has no graph.json; copy the whole directory")
    if not (file / "state_dict.safetensors").exists():
        raise FileNotFoundError(
            f"{file} holds no checkpoint; give a file, or a directory that `ch transform` saved"
        )
    logger.warning("%s holds weights only, without the formats and masks of its layers", file)
    return _pt(file / "state_dict.safetensors")


def _hf(folder: Path) -> State:
    """Read the weights in a Hugging Face directory, from one file or several."""
    if folder.is_file():
        with _described_as(folder, "a Hugging Face directory or one of its files of weights"):
            return _pt(folder)
    single, index, binary = (folder / name for name in HF_FILES)
    if single.exists():
        return _safetensors(single)
    if index.exists():
        names = _files_of(index)
        return {k: v for name in names for k, v in _safetensors(folder / name).items()}
    if binary.exists():
        return _pt(binary)
    raise FileNotFoundError(f"{folder} has none of the files {', '.join(HF_FILES)}")


def _files_of(index: Path) -> list[str]:
    """Return the names of the files with weights that an index lists."""
    files = read_json(index, advice="download it again").get("weight_map")
    names = list(files.values()) if isinstance(files, Mapping) else []
    if not names or not all(isinstance(n, str) and n == Path(n).name for n in names):
        raise ValueError(
            f"{index} needs a table weight_map with the file name of each weight; download it again"
        )
    return sorted(set(names))


def _is_safetensors(file: Path) -> bool:
    """Whether a file begins as those of safetensors: with the length of a JSON object."""
    with file.open("rb") as content:
        start = content.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < file.stat().st_size


def _safetensors(file: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged or not a safetensors file: {error}") from error


def _tensors(content: Any, file: Path) -> State:
    if not isinstance(content, Mapping) or not content:
        raise ValueError(
            f"{file} holds an object of type {type(content).__name__}, not a state_dict"
        )
    wrong = [k for k, v in content.items() if not isinstance(v, Tensor)]
    if wrong:
        raise ValueError(
            f"{file} does not hold a state_dict: {wrong[0]!r} is not a tensor; {SAVE_WEIGHTS}"
        )
    odd = [key for key in content if not isinstance(key, str)]
    if odd:
        raise ValueError(f"{file} does not hold a state_dict: the key {odd[0]!r:.80} is not text")
    return content


READERS: dict[str, tuple[Callable[[Path], State], str]] = {
    "pt": (_pt, "Loaded pytorch checkpoint from %s"),
    "pl": (_pl, "Loaded pytorch lightning checkpoint from %s"),
    "mz": (_mz, "Loaded mase checkpoint from %s"),
    "hf": (_hf, "Loaded Hugging Face checkpoint from %s"),
}
ENDINGS = {".ckpt": "pl", ".mz": "mz"}  # others are pt


def load_model(
    load_name: str | Path, load_type: str = "mz", model: nn.Module | None = None
) -> nn.Module:
    """Load the weights at `load_name` into `model`; their names must match exactly.

    `load_type` is pt (a state_dict), pl (a Lightning checkpoint), mz (a saved graph, which is
    returned instead of `model`, or its weights), hf (a Hugging Face directory), or auto (by the
    suffix of the file).
    """
    path, load_type = checkpoint_at(Path(load_name).expanduser(), load_type)
    if load_type == "auto":
        folder = "mz" if is_saved_graph(path) or has_saved_modules(path) else "hf"
        load_type = folder if path.is_dir() else ENDINGS.get(path.suffix, "pt")
    if load_type not in READERS:
        raise ValueError(f"load_type must be {', '.join(READERS)} or auto, not {load_type!r}")
    if load_type == "mz" and is_saved_graph(path):
        return load_graph(path).model
    if model is None:
        raise ValueError(f"a {load_type!r} checkpoint holds only weights; pass the model to load")
    if load_type == "mz" and has_saved_modules(path):
        from chop.ir.graph.saved_modules import load_modules

        model = load_modules(path, model, fill)
        logger.info("Loaded transformed layers from %s", path)
        return model
    restore_folder(path)
    if not path.exists():
        missing = broken_link(path) or f"there is no checkpoint {path}"
        raise FileNotFoundError(f"{missing}; check `load_name`")
    if path.is_dir() and load_type in ("pt", "pl"):
        raise ValueError(f"{path} is a directory without best.ckpt; give the checkpoint file in it")
    if (path.parent / OLD_GRAPH).exists():
        logger.warning("%s holds weights only, without the formats and masks of its layers", path)
    read, message = READERS[load_type]
    fill(model, read(path), path)
    logger.info(message, path)
    return model


def checkpoint_at(path: Path, load_type: str) -> tuple[Path, str]:
    """Return the checkpoint and its type; in a directory of training or a project, the best.

    Other directories are returned as they are.
    """
    network = network_at(path, load_type)
    if network is None:
        return path, load_type
    logger.info("Loading %s of that directory: %s", network.about, network.path)
    return network.path, network.load_type


def network_at(
    path: Path, load_type: str, *, without: Collection[Made] = ()
) -> ProjectNetwork | None:
    """Return the network that a directory of training or a project stands for; None for others.

    A type `pl` or `pt` asks for a checkpoint, not for a graph.
    """
    is_other = is_saved(path) or any((path / name).exists() for name in HF_FILES)
    if not path.is_dir() or is_other or load_type == "hf":
        return None
    kinds = ("mz", "pl") if load_type in ("mz", "auto") else ("pl",)
    return next(networks_of(path, without=without, kinds=kinds), None)


def load_graph(path: str | Path, map_location: str | torch.device = "cpu") -> MaseGraph:
    """Load the graph in a directory that `MaseGraph.export` or `ch transform` wrote."""
    graph = MaseGraph.from_checkpoint(path, map_location)
    logger.info("Loaded mase graph from %s", path)
    return graph


def fill(model: nn.Module, state: State, source: Path | str) -> None:
    """Load `state` into `model`, after checking that it fits.

    Names may be those that the model has inside a wrapper, and batch norms may lack counters.
    """
    own = model.state_dict()
    state = min(_spellings(state), key=lambda names: len(own.keys() ^ names.keys()))
    counters = {key: t for key, t in own.items() if key.rpartition(".")[2] == COUNTER}
    state = {**counters, **state}
    check_fits(model, state, source)
    model.load_state_dict(state)


def _spellings(state: State) -> Iterator[State]:
    """Yield weights under their names, without those of wrappers, and without firsts in common."""
    yield state
    parts = {key: [part for part in key.split(".") if part not in IN_NAMES] for key in state}
    yield _renamed(state, {key: ".".join(names) for key, names in parts.items()})
    while all(parts.values()) and len({names[0] for names in parts.values()}) == 1:
        parts = {key: names[1:] for key, names in parts.items()}
        yield _renamed(state, {key: ".".join(names) for key, names in parts.items()})


def _renamed(state: State, names: Mapping[str, str]) -> State:
    """Return weights under other names; the same if two would have one name, or one none."""
    one_each = len({*names.values()}) == len(state) and all(names.values())
    return {names[key]: tensor for key, tensor in state.items()} if one_each else state


def check_fits(model: nn.Module, state: State, source: Path | str) -> None:
    """Refuse weights with names, shapes or types that differ from those of `model`."""
    weights = model.state_dict()
    for key, tensor in state.items():
        if (problem := _problem_of(tensor, weights.get(key))) is not None:
            raise ValueError(f"{source}: {key} {problem}; save the weights as plain tensors")
    misfits = {
        "missing": weights.keys() - state.keys(),
        "unexpected": state.keys() - weights.keys(),
        "wrong shapes": {
            f"{k} {list(state[k].shape)} instead of {list(weights[k].shape)}"
            for k in weights.keys() & state.keys()
            if weights[k].shape != state[k].shape
        },
    }
    problems = [f"{title} {_some(names)}" for title, names in misfits.items() if names]
    if problems:
        raise ValueError(
            f"{source} does not fit the model: {'; '.join(problems)}; "
            f"is it the checkpoint of another model or data set?"
        )


def refuse_nonfinite(model: nn.Module, source: Path | str | None) -> None:
    """Refuse parameters that are NaN or infinite, and buffers that are NaN.

    Infinite buffers are allowed, as attention masks have them.
    """
    wrong = {name: ~torch.isfinite(p) for name, p in model.named_parameters()}
    wrong |= {name: torch.isnan(buffer) for name, buffer in model.named_buffers()}
    for name, values in wrong.items():
        if (count := int(values.sum())) > 0:
            values_are = "value that is" if count == 1 else "values that are"
            raise ValueError(
                f"{source or 'the model'}: {name} has {count:,} {values_are} NaN or infinite; "
                f"train it again with a lower `learning_rate`, or use `allow_nonfinite=True` to "
                f"continue"
            )


def _problem_of(tensor: Tensor, weight: Tensor | None) -> str | None:
    """Return why a tensor cannot replace `weight` of the model, whatever their shapes."""
    if (reason := why_not_plain(tensor)) is not None or weight is None:
        return reason
    # truth values, complex and real numbers cannot replace each other, nor codes what they mean
    theirs, ours = map(_kind_of, (tensor, weight))
    if theirs == ours or (theirs, ours) == ("real", "integer"):
        return None
    types = [str(t.dtype).removeprefix("torch.") for t in (tensor, weight)]
    return f"is {types[0]}, but the model's is {types[1]}"


def _kind_of(tensor: Tensor) -> str:
    if tensor.is_complex() or tensor.dtype is torch.bool:
        return str(tensor.dtype)
    return "real" if tensor.is_floating_point() else "integer"


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f", … {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
