"""`verify`: run a network in all ways that a project has, and certify that they agree."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.circuits import given_source, network, source_of
from chop.actions.config import OPTIONS, ConfigError, RunConfig
from chop.actions.invocation import command
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.actions.suggestion import command_for
from chop.actions.transform.source import Source
from chop.files import is_onnx_file

if TYPE_CHECKING:  # `ch verify --help` does not import torch
    from torch import nn

    from chop.actions.certificate.compare import Certificate
    from chop.actions.certificate.ways import Way
    from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["CertificateError", "run_verify", "verify"]

logger = logging.getLogger(__name__)

SHOWN = 5  # changes in a message


class CertificateError(ValueError):
    """Ways to run a network differ, or a certificate does not hold any more."""


def verify(
    model: nn.Module | MaseGraph,
    model_info: Any = None,
    task: str = "cls",
    dataset_info: Any = None,
    data_module: Any = None,
    load_name: str | None = None,
    load_type: str | None = None,
    *,
    project_dir: str | Path,
    against: Sequence[Way] = (),
    samples: int = 1024,
    random_vectors: int = 1024,
    seed: int = 0,
) -> Certificate:
    """Compare the ONNX files and the circuit in `project_dir` with a quantised network.

    The certificate is written to the project and returned; a difference raises an error.
    """
    from chop.actions.certificate.compare import missing_ways
    from chop.log import show_logs_unless_configured

    show_logs_unless_configured()
    source = given_source(model, model_info, data_module, task, load_name, load_type)
    counts = {"samples": samples, "random": random_vectors, "seed": seed}
    folder = Path(project_dir).expanduser().absolute()
    chosen = ChosenWays.of(against, missing_ways(folder))
    made = _made(source, folder, chosen, counts)
    _write(made, folder)
    return _checked(made)


@dataclass(frozen=True)
class ChosenWays:
    """What a network is compared in, and what it is not, with the reasons."""

    ways: Sequence[Way]
    missing: Mapping[Way, str]
    required: Sequence[Way]

    @classmethod
    def of(cls, against: Sequence[Way], missing: Mapping[Way, str]) -> ChosenWays:
        """Return all that a project has, or those that the user named."""
        from chop.actions.certificate.compare import chosen_ways

        return cls(chosen_ways(against, missing), {} if against else missing, against)


def check_verify(config: RunConfig, project: Project, from_file: Collection[str]) -> ChosenWays:
    """Refuse, before anything is loaded, ways that a project does not have."""
    from chop.actions.certificate.compare import missing_ways
    from chop.actions.certificate.record import FILE, read_certificate

    if set(config.against) == {"integers"}:
        raise ConfigError(
            "--against integers: the integer graph is the reference; name something to compare "
            "with it"
        )
    missing = missing_ways(project.folder, _commands(config, project.folder), _onnx_file(config))
    chosen = ChosenWays.of(config.against, missing)
    if config.again and read_certificate(project.folder) is None:
        raise ConfigError(f"--again: there is no {FILE} in {project.folder}; omit it")
    return chosen


def run_verify(config: RunConfig, project: Project, chosen: ChosenWays) -> None:
    """Run `ch verify`."""
    from chop.actions.certificate.record import (
        differences,
        read_certificate,
        usable_certificate,
    )

    earlier = (read_certificate if config.again else usable_certificate)(project.folder)
    if config.load_name is not None:
        logger.info("Verifying the network in %s", config.load_name)
    model, info, data_module = model_and_data(config)
    source = source_of(config, model, info, data_module)
    counts = {"samples": config.samples, "random": config.random_vectors, "seed": config.seed}
    try:
        made = _made(source, project.folder, chosen, counts, config=config, earlier=earlier)
    except (ValueError, OSError):
        if earlier is not None and not config.again:
            said = "No certificate written; the existing one (%s, %r) may be out of date"
            logger.warning(said, earlier["made"], earlier["verdict"])
        raise
    changed = [] if earlier is None else differences(earlier, made.record)
    if config.again:
        assert earlier is not None
        _log_machines(earlier, made.record)
        if changed:
            first = f"; {made.difference}" if made.difference else ""
            listed = ", ".join(changed[:SHOWN]) + (", …" if len(changed) > SHOWN else "")
            raise CertificateError(
                f"the certificate of {earlier['made']} does not hold: {listed}{first}"
            )
        _checked(made)
        logger.info("The certificate of %s holds", earlier["made"])
        return
    for change in changed:
        logger.info("Since the certificate of %s, %s", (earlier or {})["made"], change)
    _write(made, project.folder)
    _checked(made)
    logger.info("Verification is completed")


def _made(
    source: Source,
    folder: Path,
    chosen: ChosenWays,
    counts: Mapping[str, int],
    *,
    config: RunConfig | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> Certificate:
    """Return the certificate, and log it."""
    from chop.actions.certificate.compare import certified
    from chop.actions.certificate.vectors import Vectors
    from chop.actions.certificate.ways import Subject
    from chop.actions.samples import samples_to_test, split_to_test
    from chop.actions.train import checked_task

    file = _onnx_file(config) if config else None
    graph, integers = network(source)
    for reason in chosen.missing.values():
        logger.warning("Not compared: %s", reason)
    data = source.data_module
    inputs, labels = samples_to_test(data, graph.model, counts["samples"])
    if len(labels) < counts["samples"]:
        logger.info("The %s split has %d samples only", split_to_test(data), len(labels))
    more, split = {name: counts[name] for name in ("random", "seed")}, split_to_test(data)
    vectors = Vectors.made(integers, inputs, labels, split=split, **more)
    task = checked_task(source.task, data)
    load = None if source.load_name is None else Path(source.load_name)
    names = {"model": source.model_name, "dataset": getattr(data, "name", "")}
    made = certified(
        Subject(graph, integers, vectors, task, data.batch_size, folder, file=file),
        chosen.ways,
        network=load or file,
        names={kind: name for kind, name in names.items() if name},
        required=chosen.required,
        missing=chosen.missing,
        command=command("verify", *_words(config, folder)) if config else "",
        options=_options(config, folder) if config else {},
        earlier=earlier,
    )
    logger.info("Results of %s vectors:\n%s", f"{len(vectors):,}", made.table())
    return made


def _onnx_file(config: RunConfig) -> Path | None:
    """Return the ONNX file that the network is read from, if it is one."""
    return Path(str(config.model)) if is_onnx_file(config.model) and not config.load_name else None


def _commands(config: RunConfig, folder: Path) -> dict[Way, str]:
    """Return the commands that add what a project does not have."""
    load = None if config.load_name is None else Path(config.load_name)

    def words(action: str) -> str:
        return command_for(action, config, load, config.load_type, folder)

    return {"onnx": words("export") + " --format integer", "verilog": words("emit")}


def _options(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return the options of a certificate that are not the usual, as a command line has them."""
    from chop.actions.certificate.project import RECORDED
    from chop.actions.certificate.ways import inside

    found: dict[str, Any] = {}
    for name in RECORDED:
        value, option = getattr(config, name), OPTIONS[name]
        if value == option.default:
            continue
        text = str(value) if not option.is_list else [str(each) for each in value]
        found[name] = value if option.is_switch else text
    load = None if config.load_name is None else inside(Path(config.load_name), folder)
    return {**found, "load_name": load} if load is not None else found


def _words(config: RunConfig, folder: Path) -> list[object]:
    """Return the words of the command that makes a certificate again."""
    from chop.actions.certificate.project import RECORDED

    words: list[object] = [config.model, config.dataset]
    words += [] if config.load_name is None else ["--load", config.load_name]
    words += ["--project-dir", folder.parent, "--project", folder.name]
    for name in (*RECORDED, "imports", "batch_size", "num_workers"):
        value, option = getattr(config, name), OPTIONS[name]
        if value == option.default:
            continue
        flag = option.flags[0]
        if option.is_switch:
            words.append(flag)
        else:
            for each in value if option.is_list else [value]:
                words += [flag, each]
    return words


def _write(made: Certificate, folder: Path) -> None:
    from chop.actions.certificate.record import write_certificate

    files = write_certificate(made.record, folder)
    logger.info("Written to %s: %s", folder, ", ".join(file.name for file in files))


def _checked(made: Certificate) -> Certificate:
    if made.difference is not None:
        raise CertificateError(made.difference)
    return made


def _log_machines(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Log which versions and which processor are others than those of a certificate."""
    for part in ("versions", "machine"):
        for key, value in now[part].items():
            if value is not None and before[part].get(key) != value:
                logger.info("Here, %s is %s instead of %s", key, value, before[part].get(key))
