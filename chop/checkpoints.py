"""Load weights from disk into a model, without running code from the file."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.files import replaced_folder, restore_folder, write_safetensors
from chop.plain_tensors import load_plain, why_not_plain, why_unreadable

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

logger = logging.getLogger(__name__)

WRAPPERS = ("state_dict", "model")  # common keys of a nested state_dict
State = Mapping[str, Tensor]
HF_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def read_torch_file(file: Path) -> Any:
    """Return the contents of a `torch.save` file on the CPU; refuse a file that would run code."""
    try:
        return load_plain(file)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is damaged or not a checkpoint, or reading it would run code from it; save a "
            f"state_dict with torch.save(model.state_dict(), …) and load it with load_type 'pt'"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # torch may raise anything for bytes that are not a pickle
        raise ValueError(
            f"{file} is damaged or not a checkpoint ({why_unreadable(error)}); give a file that "
            f"torch.save wrote, or copy it again"
        ) from error


def _pt(file: Path) -> State:
    if file.suffix == ".safetensors":
        return _safetensors(file)
    content = read_torch_file(file)
    if isinstance(content, Mapping) and "pytorch-lightning_version" in content:
        raise ValueError(f"{file} is a Lightning checkpoint; add --load-type pl (load_type 'pl')")
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    return _tensors(content, file)


def _pl(file: Path) -> State:
    """The weights of a wrapped model, without metric states and the like."""
    if file.suffix != ".ckpt":
        logger.warning("%s does not end in .ckpt; is it a Lightning checkpoint?", file)
    content = read_torch_file(file)
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping):
        raise ValueError(f"{file} is not a Lightning checkpoint, as it has no state_dict; try pt")
    began = content.get("hyper_parameters")
    began = began if isinstance(began, Mapping) else {}  # other programs may store anything here
    if began.get("load_type") == "mz" and began.get("load_name"):
        logger.warning(
            "%s holds the weights of a transformed network without its number formats and masks; "
            "load the directory transformed_ckpt beside it instead (load_type 'mz')",
            file,
        )
    mine = {
        key.removeprefix("model."): value
        for key, value in state.items()
        if isinstance(key, str) and key.startswith("model.")
    }
    if not mine:
        raise ValueError(f"{file} has no weights that begin with 'model.'; try load_type 'pt'")
    return _tensors(mine, file)


def _mz(file: Path) -> State:
    if file.suffix == ".ckpt":
        raise ValueError(f"{file} is a Lightning checkpoint; add --load-type pl (load_type 'pl')")
    if not file.is_dir():
        return _pt(file)
    if (file / "node_meta_param.toml").exists():
        raise ValueError(f"{file} has no graph.json; copy the whole directory")
    logger.warning("%s holds weights only, without the formats and masks of its layers", file)
    return _pt(file / "state_dict.safetensors")


def _hf(folder: Path) -> State:
    """The weights in a Hugging Face directory, in one or several files."""
    if folder.is_file():
        return _pt(folder)
    single, index, binary = (folder / name for name in HF_FILES)
    if single.exists():
        return _safetensors(single)
    if index.exists():
        names = _files_of(index)
        return {k: v for name in names for k, v in _safetensors(folder / name).items()}
    if binary.exists():
        return _pt(binary)
    raise FileNotFoundError(f"{folder} has none of {', '.join(HF_FILES)}")


def _files_of(index: Path) -> list[str]:
    """The files with weights that an index lists."""
    import json

    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{index} is not valid JSON ({error}); download it again") from error
    except RecursionError as error:
        raise ValueError(f"{index} is nested too deeply; download it again") from error
    files = content.get("weight_map") if isinstance(content, Mapping) else None
    names = list(files.values()) if isinstance(files, Mapping) else []
    if not names or not all(isinstance(n, str) and n == Path(n).name for n in names):
        raise ValueError(
            f"{index} needs a table weight_map with the file name of each weight; download it again"
        )
    return sorted(set(names))


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
        raise ValueError(f"{file} does not hold a state_dict: {wrong[0]!r} is not a tensor")
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
ENDINGS = {
    ".ckpt": "pl",
    ".mz": "mz",
    ".pt": "pt",
    ".pth": "pt",
    ".bin": "pt",
    ".safetensors": "pt",
}


def load_model(
    load_name: str | Path, load_type: str = "mz", model: nn.Module | None = None
) -> nn.Module:
    """Load the weights at `load_name` into `model`, all of them and no others.

    `load_type` is pt (a state_dict), pl (a Lightning checkpoint), mz (a saved graph, which returns
    its own model instead of `model`, or only weights), hf (a Hugging Face directory), or auto (by
    the suffix of the file).
    """
    path = Path(load_name).expanduser()
    if load_type == "auto":
        folder = "mz" if is_saved_graph(path) else "hf"
        load_type = folder if path.is_dir() else ENDINGS.get(path.suffix, "pt")
    if load_type not in READERS:
        raise ValueError(
            f"load_type must be one of {', '.join(READERS)} or auto, not {load_type!r}"
        )
    if load_type == "mz" and is_saved_graph(path):
        return load_graph(path).model
    if model is None:
        raise ValueError(f"a {load_type!r} checkpoint holds weights only; pass the model to fill")
    restore_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}; give an existing file")
    if path.is_dir() and load_type in ("pt", "pl"):
        raise ValueError(f"{path} is a directory; give the checkpoint in it")
    read, message = READERS[load_type]
    fill(model, read(path), path)
    logger.info(message, path)
    return model


def is_saved_graph(path: str | Path) -> bool:
    """Return whether this is a directory that `MaseGraph.export` or `ch transform` wrote."""
    from chop.ir.graph.saving import is_saved_graph

    return is_saved_graph(path)


def load_graph(path: str | Path, map_location: str | torch.device = "cpu") -> MaseGraph:
    """Load the graph in a directory that `MaseGraph.export` or `ch transform` wrote."""
    from chop.ir.graph.mase_graph import MaseGraph

    graph = MaseGraph.from_checkpoint(path, map_location)
    logger.info("Loaded mase graph from %s", path)
    return graph


def save_state_dict(model: nn.Module, folder: str | Path) -> Path:
    """Write the weights of `model` to a directory that load_type 'mz' reads."""
    state = {key: value.detach().cpu().clone() for key, value in model.state_dict().items()}
    with replaced_folder(folder, ["state_dict.safetensors"]) as part:
        write_safetensors(state, part / "state_dict.safetensors")
    return Path(folder)


def fill(model: nn.Module, state: State, source: Path | str) -> None:
    """Load `state` into `model`; mismatches raise an error before anything is changed."""
    check_fits(model, state, source)
    model.load_state_dict(dict(state))


def check_fits(model: nn.Module, state: State, source: Path | str) -> None:
    """Raise an error for weights with names, shapes or kinds other than those of `model`."""
    expected = model.state_dict()
    for key, tensor in state.items():
        if (problem := _problem_of(tensor, expected.get(key))) is not None:
            raise ValueError(f"{source}: {key} {problem}; save the weights as plain tensors")
    problems = []
    for title, keys in (
        ("missing", expected.keys() - state.keys()),
        ("unexpected", state.keys() - expected.keys()),
    ):
        if keys:
            problems.append(f"{title} {_some(keys)}")
    shapes = {
        f"{k} {list(state[k].shape)} for {list(expected[k].shape)}"
        for k in expected.keys() & state.keys()
        if expected[k].shape != state[k].shape
    }
    if shapes:
        problems.append(f"other shapes {_some(shapes)}")
    if problems:
        raise ValueError(
            f"{source} does not fit the model: {'; '.join(problems)}; "
            f"is it the checkpoint of another model or data set?"
        )


def refuse_nonfinite(model: nn.Module, source: Path | str | None) -> None:
    """Raise an error for parameters that are nan or infinite, and for buffers that are nan.

    An infinite buffer may be intended, as in an attention mask.
    """
    wrong = {name: ~torch.isfinite(p) for name, p in model.named_parameters()}
    wrong |= {name: torch.isnan(buffer) for name, buffer in model.named_buffers()}
    for name, values in wrong.items():
        if (count := int(values.sum())) > 0:
            values_are = "value that is" if count == 1 else "values that are"
            raise ValueError(
                f"{source or 'the model'}: {name} has {count:,} {values_are} nan or infinite; "
                f"train it again with a lower learning rate, or allow it (--allow-nonfinite)"
            )


def _problem_of(tensor: Tensor, expected: Tensor | None) -> str | None:
    """Why a tensor cannot become the parameter `expected`, regardless of shape; None if it can."""
    if (reason := why_not_plain(tensor)) is not None:
        return reason
    if expected is not None and _kind(tensor) != _kind(expected):
        theirs, ours = (str(t.dtype).removeprefix("torch.") for t in (tensor, expected))
        return f"is {theirs}, but the model's is {ours}"
    return None


def _kind(tensor: Tensor) -> str:
    """Return the kind of numbers; different kinds cannot replace each other."""
    if tensor.dtype is torch.bool:
        return "bool"
    return "complex" if tensor.is_complex() else "real"


def _some(names: Any, most: int = 4) -> str:
    names = sorted(names)
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
