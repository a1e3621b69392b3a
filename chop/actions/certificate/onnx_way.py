"""The ONNX files of a project, run by onnxruntime and compared with the integers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.actions.certificate.ways import (
    DEPLOYED,
    PLAIN,
    Column,
    Compared,
    Difference,
    Subject,
    compared,
)
from chop.actions.onnx_models import ONNX
from chop.integers import IntegerGraph
from chop.onnx.metadata import CODES_SUFFIX, FORMAT_KEY, NETWORK_KEY, metadata_of
from chop.onnx.qonnx_runtime import QonnxRuntime, why_not_run
from chop.onnx.reading.errors import UnreadableModel
from chop.onnx.reading.files import load_proto
from chop.onnx.runtime import QONNX, Array, Runtime, input_dtype
from chop.passes.graph.analysis.layer_checks import on_grid, tolerance
from chop.system.files import is_onnx_file, part_folder

__all__ = ["OnnxFile", "onnx_columns", "onnx_files"]

FLOAT_FORMAT = "onnx"  # the format of a network that is not quantised
AGAIN = "export it again with ch export"
BY_OPTIMISER = "it agrees if onnxruntime does not optimise: its optimiser changes the results"
TIES = (
    "its steps are measured floats, which onnxruntime multiplies with in float32: a value near a "
    "tie may round the other way; `ch export --format integer` has no such difference"
)
NEAR_WHOLE = 2.0**-20  # of a code: how far a float output may be from it, if steps are no powers


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """An ONNX file, and what it says of itself."""

    path: Path
    model: Any  # onnx.ModelProto, without the tensors that lie beside the file
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> OnnxFile:
        """Read a file; refuse one that is no ONNX in one sentence."""
        try:
            model = load_proto(path)
        except UnreadableModel as error:
            raise ValueError(f"{path} is not an ONNX file that can be run; {AGAIN}") from error
        if not model.graph.node or not model.graph.output:
            raise ValueError(f"{path} is not an ONNX file with a network; {AGAIN}")
        return cls(path, model, metadata_of(model))

    @property
    def format(self) -> str:
        """The format, as the file or its name says."""
        return self.metadata.get(FORMAT_KEY, self.path.stem)

    @property
    def has_codes(self) -> bool:
        """Whether its values are the codes of the integer graph."""
        return self.format == "integer"

    @property
    def has_quant_nodes(self) -> bool:
        """Whether it has nodes of QONNX, which onnxruntime does not run."""
        return any(node.domain.startswith(QONNX) for node in self.model.graph.node)

    @property
    def network(self) -> str | None:
        """The checksum of the network that the file was made from, if the file has it."""
        return self.metadata.get(NETWORK_KEY)

    @property
    def data_files(self) -> list[Path]:
        """The files beside it that hold tensors."""
        places = [
            entry.value
            for tensor in self.model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        ]
        for place in places:
            if Path(place).name != place:
                raise ValueError(f"{self.path} has data at {place!r}, not beside it; {AGAIN}")
            if not (self.path.parent / place).is_file():
                raise FileNotFoundError(f"{self.path} needs {place!r} beside it; {AGAIN}")
        return [self.path.parent / place for place in dict.fromkeys(places)]


def onnx_files(folder: Path, model: Path | None = None) -> list[Path]:
    """Return the ONNX files of a project, and that of the model if it is one elsewhere."""
    found = sorted((folder / ONNX).glob("*.onnx"))
    is_other = model is not None and is_onnx_file(model) and model not in found
    return [model, *found] if model is not None and is_other else found


def onnx_columns(subject: Subject, path: Path) -> list[Column]:
    """Return the columns of one file: as it is deployed, and without onnxruntime's optimiser."""
    file = OnnxFile.read(path)
    if file.has_quant_nodes:
        return [_column(subject, file, None)]
    deployed = _column(subject, file, DEPLOYED)
    if deployed.mismatches is None:
        return [replace(deployed, session=None)]
    plain = replace(_column(subject, file, PLAIN), faults=(), network=None)
    if deployed.mismatches and not plain.mismatches:
        deployed = replace(deployed, notes=(*deployed.notes, BY_OPTIMISER))
    return [deployed, plain]


def _column(subject: Subject, file: OnnxFile, how: str | None) -> Column:
    """Return the column of a file in one kind of session."""
    name = subject.inside(file.path)
    if file.has_quant_nodes and (reason := why_not_run(file.model)):
        note = f"it is not run: {reason}"
        return Column(
            "onnx", name, faults=_stale(subject, file), notes=(note,), network=file.network
        )
    session = Session(file, how)
    batches = [session.run(batch) for batch in subject.vectors.batches()]
    outputs = {name: np.concatenate([batch[name] for batch in batches]) for name in session.outputs}
    if file.format == FLOAT_FORMAT and file.network is None:
        note = "it is not quantised, so that only its score is compared"
        score = subject.score(torch.from_numpy(outputs[session.outputs[0]]))
        return Column("onnx", name, score=score, notes=(note,))
    left_out = subject.integers.left_out
    if left_out and not file.has_codes:
        note = f"only its score is compared, as the integers end before {', '.join(left_out)}"
        score = subject.score(torch.from_numpy(outputs[session.outputs[0]]))
        faults = _stale(subject, file)
        return Column("onnx", name, score=score, faults=faults, notes=(note,), network=file.network)
    if file.has_codes:
        names = _code_outputs(file, session.outputs, subject.integers)
        codes = [_codes(outputs[name]) for name in names]
    else:
        codes = _in_steps(file, session.outputs, outputs, subject.integers)
    result = compared(subject.expected, codes, _wrong(file, subject, codes))
    notes = [] if file.network else ["it does not say which network it was made from"]
    if result.mismatches and not file.has_codes and _has_measured_steps(subject.integers):
        notes.append(TIES)
    return Column(
        "onnx",
        name,
        how,
        score=subject.score_codes(codes[0]),
        mismatches=result.mismatches,
        wrong_vectors=result.wrong_vectors,
        first=_first(subject, file, how, result),
        faults=_stale(subject, file),
        notes=tuple(notes),
        network=file.network,
    )


def _has_measured_steps(integers: IntegerGraph) -> bool:
    """Return whether codes are multiplied by quotients of floats."""
    return any(getattr(node.op, "multiplier", None) is not None for node in integers.nodes.values())


def _stale(subject: Subject, file: OnnxFile) -> tuple[str, ...]:
    is_reference = file.path == subject.file  # what is read from a file has other names
    if is_reference or file.network is None or file.network == subject.digest:
        return ()
    sums = f"checksum {file.network[:12]}… instead of {subject.digest[:12]}…"
    return (f"was made from another network ({sums}); {AGAIN}",)


class Session:
    """A network in onnxruntime on the CPU.

    As it is deployed, with all optimisations and the usual threads, or on one thread and not
    optimised. Files of QONNX run in qonnx's executor.
    """

    def __init__(self, file: OnnxFile, how: str | None) -> None:
        self.path = file.path
        if file.has_quant_nodes:
            self.runtime: QonnxRuntime | Runtime = QonnxRuntime(file.path)
        elif how == PLAIN:
            self.runtime = Runtime(file.path, optimize=False)
        else:
            self.runtime = Runtime(file.path, threads=None)
        self.outputs = self.runtime.outputs

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return all outputs for a batch of floats per input; names of a single one may differ."""
        declared = self.runtime.inputs
        if len(declared) == len(inputs) == 1:
            inputs = dict(zip(declared, inputs.values(), strict=True))
        try:
            return self.runtime.run({name: self._array(name, x) for name, x in inputs.items()})
        except Exception as error:  # of onnxruntime, which has no common class
            raise ValueError(f"{self.path} cannot be run: {_line(error)}; {AGAIN}") from error

    def _array(self, name: str, x: Tensor) -> Array:
        if isinstance(self.runtime, Runtime) and name in self.runtime.inputs:
            return x.numpy().astype(input_dtype(self.runtime.inputs[name].type))
        return x.numpy()


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _code_outputs(file: OnnxFile, outputs: Sequence[str], integers: IntegerGraph) -> list[str]:
    """Return the outputs that are codes, one for each of the network."""
    found = [name for name in outputs if name.endswith(CODES_SUFFIX)]
    if len(found) != len(integers.outputs):
        raise ValueError(
            f"{file.path} has {len(found)} outputs of codes, and the network has "
            f"{len(integers.outputs)} outputs; {AGAIN}"
        )
    return found


def _in_steps(
    file: OnnxFile,
    names: Sequence[str],
    outputs: Mapping[str, Array],
    integers: IntegerGraph,
) -> list[Tensor]:
    """Return float outputs in steps of the codes that they stand for."""
    if len(names) < len(integers.outputs):
        raise ValueError(
            f"{file.path} has {len(names)} outputs, and the network has "
            f"{len(integers.outputs)}; {AGAIN}"
        )
    pairs = zip(names, integers.outputs, strict=False)
    return [_steps(outputs[name], node, integers) for name, node in pairs]


def _codes(values: Array) -> Tensor:
    """Return codes as they are: float64 does not tell integers beyond 2^53 apart."""
    is_whole = np.issubdtype(values.dtype, np.integer)
    return torch.from_numpy(values.astype(np.int64 if is_whole else np.float64))


def _steps(values: Array, node: str, integers: IntegerGraph) -> Tensor:
    return torch.from_numpy(values.astype(np.float64)) / integers.codes(node).scale.value


def _wrong(file: OnnxFile, subject: Subject, codes: Sequence[Tensor]) -> list[Tensor]:
    """Return where the codes of the outputs differ."""
    integers = subject.integers
    for node, own, found in zip(integers.outputs, subject.expected, codes, strict=True):
        if own.shape != found.shape:
            shapes = f"{list(found.shape[1:])} instead of {list(own.shape[1:])}"
            raise ValueError(f"{file.path}: the output {node!r} has the shape {shapes}; {AGAIN}")
    return [
        _differs(file, integers, node, own, found)
        for node, own, found in zip(integers.outputs, subject.expected, codes, strict=True)
    ]


def _differs(
    file: OnnxFile, integers: IntegerGraph, node: str, own: Tensor, found: Tensor
) -> Tensor:
    """Return where codes differ from those of a node; floats only have to be near to them.

    A value that float32 does not hold exactly may differ by its rounding.
    """
    exact = integers.codes(node).scale.power_of_two and integers.nodes[node].proven
    if exact or file.has_codes:
        return found != own
    distance = (found - own).abs()
    if on_grid(node, integers):
        return ~(distance <= NEAR_WHOLE * own.abs().clamp(min=1))
    return ~(distance <= tolerance(own.double()))


def _first(
    subject: Subject, file: OnnxFile, how: str | None, result: Compared
) -> Difference | None:
    """Return the first node whose codes differ in the first wrong vector, or the output."""
    integers = subject.integers
    output = result.difference(integers.outputs[result.output])
    if output is None:
        return None
    inputs = subject.vectors.only(output.vector)
    wanted = dict(_values_of_nodes(file, integers))
    try:
        with _with_outputs(file, [*wanted]) as path:
            values = Session(replace(file, path=path), how).run(inputs)
    except ValueError:  # a value that cannot be an output
        return output
    codes = integers.trace(**inputs)
    for value, node in sorted(wanted.items(), key=lambda pair: list(codes).index(pair[1])):
        own, found = codes[node], values[value]
        steps = _codes(found) if file.has_codes else _steps(found, node, integers)
        if steps.shape != own.shape:
            continue
        one = compared([own], [steps], [_differs(file, integers, node, own, steps)])
        if one.vector is not None:
            return Difference(node, output.vector, one.place, one.expected, one.got)
    return output


def _values_of_nodes(file: OnnxFile, integers: IntegerGraph) -> Iterator[tuple[str, str]]:
    """Yield the values of a file that have codes in the integer graph, with their nodes.

    A file of integers calls its values like the nodes of the integer graph, and any other like
    those of the quantised graph.
    """
    values = {name for node in file.model.graph.node for name in node.output}
    if file.has_codes:
        yield from ((name, name) for name in integers.nodes if name in values)
        return
    for name, node in integers.values.items():
        if name in values and on_grid(node, integers):
            yield name, node


@contextmanager
def _with_outputs(file: OnnxFile, names: Sequence[str]) -> Iterator[Path]:
    """Yield a copy of a file with more outputs, beside it, where its data are found."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    known = {each.name for each in model.graph.output}
    for name in names:
        if name not in known:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    with part_folder(file.path) as folder:
        for data in file.data_files:
            os.link(data, folder / data.name)
        copy = folder / file.path.name
        copy.write_bytes(model.SerializeToString())
        yield copy
