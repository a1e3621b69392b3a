"""Spaces that are written as classes with the labs' hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chop.actions.search.space.base import Candidate
from chop.actions.search.space.choices import Choices, OneOf, Parameter

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
        """Fill in what can be chosen."""
        raise NotImplementedError

    def flattened_indexes_to_config(self, indexes: Mapping[str, int]) -> dict[str, Any]:
        """The design for an index into each list."""
        raise NotImplementedError

    def rebuild_model(self, sampled_config: dict[str, Any], is_eval_mode: bool = True) -> Any:
        """The network of a design, made from the pristine model."""
        raise NotImplementedError


class HookSpace:
    """A space that is made of the hooks, as the rest of a search sees it."""

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
        made = self.inner.rebuild_model(config, is_eval_mode=True)
        model = getattr(made, "model", made)
        return Candidate(model, lambda: made)

    def expect_training(self) -> None:
        """`rebuild_model` starts from the pristine model each time."""

    def separate_candidate(self, config: dict[str, Any]) -> Candidate:
        return self.candidate(config)

    def build(self, config: dict[str, Any]) -> Any:
        return self.inner.rebuild_model(config, is_eval_mode=False)
