from copy import deepcopy

from torch import nn

from chop.actions.search import (
    SearchSpaceBase,
    Strategy,
    metric,
    register_search_space,
    register_strategy,
)


@register_strategy("countdown")
class Countdown(Strategy):
    """My brute force: from the last design to the first."""

    looks_back = False

    def ask(self, number):
        left = self.context.choices.size - number
        return self.context.choices.nth(left - 1) if left > 0 else None


@metric("weight_bits", side="hardware", better="minimize")
def weight_bits(trial, *, bits: int = 32) -> float:
    """What the weights take."""
    return float(bits * sum(p.numel() for p in trial.model.parameters()))


@register_search_space("mine/activation")
class Activations(SearchSpaceBase):
    """Another activation after the last layer."""

    def build_search_space(self):
        self.choices_flattened = {"last": self.config["seed"]["last"]}
        self.choice_lengths_flattened = {k: len(v) for k, v in self.choices_flattened.items()}

    def flattened_indexes_to_config(self, indexes):
        return {key: self.choices_flattened[key][i] for key, i in indexes.items()}

    def rebuild_model(self, sampled_config, is_eval_mode=True):
        model = deepcopy(self.model)
        setattr(model.seq_blocks, "3", getattr(nn, sampled_config["last"])())
        return model.train(not is_eval_mode)
