"""The project of `ch verify PROJECT`: its directory, its network and its data set."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.actions.config import ConfigError, default_project_dir
from chop.actions.named_by_files import why_not_named
from chop.actions.onnx_models import ONNX
from chop.options import did_you_mean
from chop.system.files import is_onnx_file, why_missing

__all__ = ["RECORDED", "with_project"]

OTHERWISE = "or give MODEL and DATASET with --load"
# what decides which vectors are compared; no code, as a certificate may come from a stranger
RECORDED = (
    *("task", "against", "samples", "random_vectors", "seed", "data_path", "standardize"),
    *("legacy_val", "max_token_len", "load_type", "size"),
)


def with_project(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a command with the model and the data set of the project that it names.

    A name alone is that of a project, or an ONNX file; two are a model and a data set. With
    `again`, the options of its certificate are added.
    """
    name = flags.get("model") or flags.get("project")
    if "dataset" in flags or ("config" in flags and "model" not in flags):
        return dict(flags)
    if name is None:
        raise ConfigError(f"give a project to verify, by its directory or its name, {OTHERWISE}")
    if is_onnx_file(name):
        return _onnx_file(Path(str(name)).expanduser().absolute(), flags)
    folder = _folder(str(name), Path(flags.get("project_dir") or default_project_dir()))
    own = {"project_dir": str(folder.parent), "project": folder.name}
    repeated = _repeated(folder) if flags.get("again") else {}
    load = flags.get("load_name") or str(_network(folder, repeated.pop("load_name", None)))
    load_type = flags.get("load_type") or repeated.pop("load_type", "mz")
    made = {"load_name": load, "load_type": load_type}
    names = _names(Path(load), load_type)
    words = f"ch verify {names['model']} {names['dataset']} --load {load}"
    _check(names["model"], names["dataset"], folder, Path(load), words, {**repeated, **flags})
    return {**repeated, **flags, **own, **made, **names}


def _onnx_file(file: Path, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is verified for an ONNX file alone: the project in which it lies, or the file.

    A file outside a project is compared with the network that is read from it.
    """
    if not file.is_file():
        raise ConfigError(why_missing(file, "file"))
    project = next((f for f in file.parents if f / ONNX == file.parent), None)
    if project is not None and any((project / "software").glob("**/graph.json")):
        against = flags.get("against") or ["onnx"]
        return with_project({**flags, "model": str(project), "against": against})
    from chop.onnx.metadata import FORMAT_KEY, MADE_FROM_KEY, metadata_of, noted
    from chop.onnx.reading.files import load_proto

    metadata = metadata_of(load_proto(file))
    if metadata.get(FORMAT_KEY) == "integer":
        raise ConfigError(
            f"{file} computes in integers, from which the network cannot be read; put it into "
            f"{ONNX} of the project of its network, and give that project"
        )
    names = noted(metadata, MADE_FROM_KEY)
    dataset = names.get("dataset") if isinstance(names, dict) else None
    if not isinstance(dataset, str) or not dataset:
        raise ConfigError(
            f"{file} does not say which data set it was made for; call ch verify {file} DATASET"
        )
    _check("", dataset, file.parent, file, f"ch verify {file} {dataset}", flags)
    project_dir, name = Path(flags.get("project_dir") or default_project_dir()), file.stem
    own = {"model": str(file), "dataset": dataset, "project": flags.get("project") or name}
    repeated = _repeated(project_dir.expanduser() / own["project"]) if flags.get("again") else {}
    return {**repeated, **flags, **own}


def _check(
    model: str, dataset: str, folder: Path, file: Path, words: str, flags: Mapping[str, Any]
) -> None:
    """Refuse a model or a data set that only a file names, if that would open or download it."""
    reason = why_not_named(model, dataset, folder, has_path=bool(flags.get("data_path")))
    if reason is not None:
        raise ConfigError(f"{file} names {reason}; to use it, call {words}")


def _folder(name: str, project_dir: Path) -> Path:
    """Return the directory of a project, given by its path or its name."""
    from chop.actions.certificate.onnx_way import onnx_files
    from chop.actions.certificate.verilog_way import has_circuit

    places = (Path(name).expanduser(), project_dir.expanduser() / name)
    folder = next((place.absolute() for place in places if place.is_dir()), None)
    if folder is None:
        known = sorted(path.parent.name for path in project_dir.glob("*/software"))
        hint = did_you_mean(name, known, f"; give the directory of a project, {OTHERWISE}")
        raise ConfigError(f"there is no project {name!r} in {project_dir}{hint}")
    if not any((folder / part).is_dir() for part in ("software", "hardware")):
        raise ConfigError(
            f"{folder} is not a project: it has neither software nor hardware in it; give the "
            f"directory of a project, {OTHERWISE}"
        )
    saved = any((folder / "software").glob("**/graph.json"))
    if not (saved or onnx_files(folder) or has_circuit(folder)):
        make = "make one with ch transform MODEL DATASET --config FILE"
        if _is_searched(folder):
            make = "build a design of its search with ch search --config FILE --apply best"
        raise ConfigError(
            f"{folder} has no saved graph, ONNX file or circuit to compare; "
            f"{make} --project {folder.name}"
        )
    return folder


def _is_searched(folder: Path) -> bool:
    return any((folder / "software" / "search_ckpts").glob("*.journal"))


def _network(folder: Path, recorded: str | None) -> Path:
    """Return the saved graph of a project: that of its certificate or circuit, else its best."""
    from chop.project_networks import networks_of

    if recorded is not None:
        return folder / recorded
    best = [network.path for network in networks_of(folder, kinds=("mz",))]
    saved = sorted(file.parent for file in (folder / "software").glob("**/graph.json"))
    found = list(dict.fromkeys([*best, *saved]))
    if len(found) > 1 and (match := _of_circuit(folder, found)) is not None:
        return match
    if best or len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        raise ConfigError(f"{folder} has several networks ({names}); give one with --load")
    raise ConfigError(_without_graph(folder))


def _without_graph(folder: Path) -> str:
    """Return what a project that has only files to compare lacks, and the commands that add it."""
    from chop.actions.certificate.onnx_way import onnx_files
    from chop.actions.certificate.verilog_way import has_circuit

    parts = ["a circuit"] * has_circuit(folder) + ["ONNX files"] * bool(onnx_files(folder))
    apply = "build a design of its search with ch search --apply best, "
    apply = apply if _is_searched(folder) else ""
    is_usual = folder.parent == default_project_dir().absolute()
    place = [] if is_usual else ["--project-dir", str(folder.parent)]
    own = shlex.join([*place, "--project", folder.name])
    return (
        f"{folder} has {' and '.join(parts)} but no saved graph (graph.json) to compare with; "
        f"{apply}make it with ch transform MODEL DATASET --config FILE {own}, or give another "
        f"with ch verify MODEL DATASET --load GRAPH {own}, where MODEL may be an .onnx file "
        f"without --load"
    )


def _of_circuit(folder: Path, graphs: Sequence[Path]) -> Path | None:
    """Return the first network from which the circuit says that it was emitted."""
    from chop.actions.certificate.verilog_way import has_circuit
    from chop.checkpoints import load_graph
    from chop.hardware.circuit import Circuit
    from chop.integers.digest import graph_digest

    if not has_circuit(folder):
        return None
    circuit = Circuit.read(folder / "hardware")
    for path in graphs:
        with contextlib.suppress(ValueError, OSError, NotImplementedError):
            graph = load_graph(path)
            graph.model.eval()
            if graph_digest(graph.to_integers()) == circuit.network:
                return path
    return None


def _names(load: Path, load_type: str) -> dict[str, str]:
    """Return the model and the data set that a saved graph was made from."""
    from chop.actions.trained_on import names_in

    names = names_in(load, load_type) if load.exists() else {}
    if missing := [kind for kind in ("model", "dataset") if not names.get(kind)]:
        what = " and ".join({"model": "model", "dataset": "data set"}[kind] for kind in missing)
        raise ConfigError(
            f"{load} does not say which {what} it was made from; call ch verify MODEL DATASET "
            f"--load {load}"
        )
    return {kind: names[kind] for kind in ("model", "dataset")}


def _repeated(folder: Path) -> dict[str, Any]:
    """Return the options of the certificate of a project, as a command line gives them."""
    from chop.actions.certificate.record import FILE, read_certificate

    record = read_certificate(folder)
    if record is None:
        raise ConfigError(f"--again: there is no {FILE} in {folder}; run ch verify without it")
    known = (*RECORDED, "load_name")
    return {name: value for name, value in record["options"].items() if name in known}
