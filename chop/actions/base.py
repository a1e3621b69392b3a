"""The actions of `ch`; to add one, write a file in this directory and an entry in `ACTIONS`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError, RunConfig
from chop.actions.project import Keeps, Project

if TYPE_CHECKING:
    from chop.project_networks import Made

__all__ = ["ACTIONS", "Action", "needs_checkpoint", "needs_config"]

Requirement = Callable[[RunConfig], None]


def needs_checkpoint(config: RunConfig) -> None:
    """Require a checkpoint or published weights to load."""
    if not config.has_weights:
        raise ConfigError("a checkpoint is required; give one with --load")


def needs_config(config: RunConfig) -> None:
    """Require a configuration file."""
    if config.config is None:
        raise ConfigError(
            "a configuration file is required; give your own with --config, or an example from "
            "ch list examples"
        )


def needs_circuit(config: RunConfig) -> None:
    """Require a project with a circuit, or what is needed to emit one."""
    names = (config.model, config.dataset)
    if config.run_emit or (config.project is None and None in names):
        if None in names:
            raise ConfigError(
                "a circuit is required; give the project that it was emitted to with --project, or "
                "MODEL and DATASET as for ch emit"
            )
        needs_checkpoint(config)


@dataclass(frozen=True)
class Action:
    """A command: its description, function and requirements."""

    name: str
    about: str
    function: str  # "module:function", imported when the action runs
    requirements: tuple[Requirement, ...] = ()
    beside_checkpoint: bool = False  # write to the project of the loaded checkpoint
    keeps: Keeps = "training"  # what --resume continues
    makes: tuple[Made, ...] = ()  # networks of a project that it makes, and does not start from
    checked_by: str | None = None  # "module:function", called before files of --import are run
    needs_names: bool = True  # of a model and a data set
    completed_by: str | None = None  # "module:function", which adds options to those given
    first_argument: str | None = None  # what MODEL may be instead, if it stands alone

    def complete(self, flags: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options on the command line, and those that follow from them."""
        return pkgutil.resolve_name(self.completed_by)(flags) if self.completed_by else flags

    def check(self, config: RunConfig, project: Project, from_file: Collection[str]) -> Any:
        """Refuse options that are wrong whatever the files of --import register.

        `from_file` are the options set in the TOML file and not on the command line. Returns what
        the check found, such as the options themselves, for `run`.
        """
        if self.checked_by is None:
            return None
        return pkgutil.resolve_name(self.checked_by)(config, project, from_file)

    def run(self, config: RunConfig, project: Project, checked: Any) -> None:
        """Run the action, with what its check returned if it returned anything."""
        found = () if checked is None else (checked,)
        pkgutil.resolve_name(self.function)(config, project, *found)


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action(
            "train",
            "Train a model on a data set.",
            "chop.actions.train:run_train",
            checked_by="chop.actions.train:check_train",
        ),
        Action(
            "test",
            "Test a trained model on the test split of a data set.",
            "chop.actions.test:run_test",
            requirements=(needs_checkpoint,),
            beside_checkpoint=True,
            checked_by="chop.actions.test:check_test",
        ),
        Action(
            "transform",
            "Run the passes in a TOML file on a model: analyse, quantise, prune, save.",
            "chop.actions.transform:run_transform",
            requirements=(needs_config,),
            makes=("transform",),
            checked_by="chop.actions.transform:check_transform",
        ),
        Action(
            "search",
            "Search for the Pareto-optimal designs of a model.",
            "chop.actions.search.search:run_search",
            requirements=(needs_config,),
            keeps="search",
            makes=("design",),
            checked_by="chop.actions.search.search:check_search",
        ),
        Action(
            "emit",
            "Write the circuit of a quantised network, in Verilog or VHDL.",
            "chop.actions.emit:run_emit",
            requirements=(needs_checkpoint,),
            beside_checkpoint=True,
            checked_by="chop.actions.emit:check_emit",
        ),
        Action(
            "simulate",
            "Run the test split through an emitted circuit, and compare it with the network.",
            "chop.actions.simulate:run_simulate",
            requirements=(needs_checkpoint,),
            beside_checkpoint=True,
            checked_by="chop.actions.simulate:check_simulate",
        ),
        Action(
            "synth",
            "Synthesise an emitted circuit, and show where its LUTs and registers are.",
            "chop.actions.synth:run_synth",
            requirements=(needs_circuit,),
            beside_checkpoint=True,
            checked_by="chop.actions.synth:check_synth",
            needs_names=False,
        ),
        Action(
            "export",
            "Write a network to an ONNX file, for onnxruntime, FINN or hls4ml.",
            "chop.actions.export:run_export",
            requirements=(needs_checkpoint,),
            beside_checkpoint=True,
            checked_by="chop.actions.export:check_export",
        ),
        Action(
            "verify",
            "Compare the simulation, the integers, the ONNX files and the circuit of a network.",
            "chop.actions.verify:run_verify",
            requirements=(needs_checkpoint,),
            beside_checkpoint=True,
            checked_by="chop.actions.verify:check_verify",
            completed_by="chop.actions.certificate.project:with_project",
            first_argument="Project directory, or its name in --project-dir",
        ),
    )
}
