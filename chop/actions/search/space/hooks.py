"""Search spaces that are written as classes with the labs' hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chop.actions.search.space.base import Candidate
from chop.actions.search.space.choices import Choices, OneOf, Parameter
from chop.registry import not_defined

if TYPE_CHECKING:
    from torch import nn


class SearchSpaceBase:
    """Subclass with `build_search_space`, `flattened_indexes_to_config` and `rebuild_model`.

    `build_search_space` fills `choices_flattened`, lists by key, and `choice_lengths_flattened`.
    """

    def __init__(
        self,
        model: nn.Module,
        model_info: Any,
        config: Mapping[str, Any],
        dummy_input: Mapping[str, Any] | None,
        accelerator: Any,
    ) -> None:
        self.model, self.model_info, self.config = model, model_info, dict(config)
        self.dummy_input, self.accelerator = dummy_input, accelerator
        self.choices_flattened: dict[str, list[Any]] = {}
        self.choice_lengths_flattened: dict[str, int] = {}
        self._post_init_setup()

    def _post_init_setup(self) -> None:
        """A hook for subclasses."""

    def build_search_space(self) -> None:
        """Fill `choices_flattened` and `choice_lengths_flattened`."""
        raise not_defined(self, "build_search_space", "search space")

    def flattened_indexes_to_config(self, indexes: Mapping[str, int]) -> dict[str, Any]:
        """Return the design for an index into each list."""
        raise not_defined(self, "flattened_indexes_to_config", "search space")

    def rebuild_model(self, sampled_config: dict[str, Any], is_eval_mode: bool = True) -> Any:
        """Return the network of a design, made from the original model."""
        raise not_defined(self, "rebuild_model", "search space")


class HookSpace:
    """The search space of a class with hooks, with the interface of `Space`."""

    joint = False

    def __init__(self, name: str, space: SearchSpaceBase) -> None:
        self.name, self.inner = name, space
        if not space.choices_flattened:
            space.build_search_space()
        lists = space.choices_flattened.items()
        self.choices = Choices([Parameter(key, OneOf(tuple(values))) for key, values in lists])
        if not self.choices.open:
            raise ValueError(f"the search space {name!r} is empty: no key has more than one choice")

    def config_of(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        lists = self.inner.choices_flattened
        indexes = {key: list(lists[key]).index(value) for key, value in chosen.items()}
        return self.inner.flattened_indexes_to_config(indexes)

    def candidate(self, config: dict[str, Any]) -> Candidate:
        network = self.inner.rebuild_model(config, is_eval_mode=True)
        return Candidate(getattr(network, "model", network), lambda: network)

    separate_candidate = candidate

    def expect_training(self) -> None:
        """Do nothing: `rebuild_model` starts from the original model each time."""

    def build(self, config: dict[str, Any]) -> Any:
        return self.inner.rebuild_model(config, is_eval_mode=False)
