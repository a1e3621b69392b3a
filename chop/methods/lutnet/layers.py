"""LUTNet: layers in which a lookup table replaces each product of weight and input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.ir.graph.tensor_rules import TensorRule
from chop.numerics import NumberFormat
from chop.numerics.base import straight_through
from chop.numerics.binary import Binary, BinaryResidual, residual_signs
from chop.passes.graph.transforms.pruning.masks import detach_mask, masks_of
from chop.passes.graph.transforms.quantize.config import check_known, without_na
from chop.passes.graph.transforms.quantize.quantized_modules.neurons import (
    Conv2dNeurons,
    LinearNeurons,
    Neurons,
)
from chop.passes.graph.transforms.quantize.variants import layer_variant

MAX_K = 8  # inputs of one table
MAX_ENTRIES = 2**24  # of all tables of a layer, which are all trained
AT_A_TIME = 2**22  # entries that are processed at a time

_COMMON = ("width", "frac_width", "k", "input_expanded", "binarization_level")
KEYS = (
    "name",
    *(f"data_in_{key}" for key in (*_COMMON, "levels", "dim")),
    *(f"{operand}_{key}" for operand in ("weight", "bias") for key in (*_COMMON, "in_dim")),
)


class LUTNet(Neurons):
    """y = |gamma| sum over levels |mean| sum over inputs mask · table(input, k - 1 others) + bias.

    Inputs are sums of signs (`data_in_levels` of them); each table maps the signs of k inputs to a
    number that is trained, and binarised to a sign if `data_in_binarization_level` is 1. In train
    mode, and with `is_lut_inference = False`, tables are evaluated as polynomials, which have
    gradients; in eval mode they are looked up. Both give the same bits.
    """

    format_name: ClassVar[str | None] = "lutnet"
    variant_name: ClassVar[str]
    config_keys: ClassVar[tuple[str, ...]] = KEYS
    derived_attributes = (*Neurons.derived_attributes, "levels", "k", "binarized")

    levels: int
    k: int
    input_mask: Tensor  # [out · in · k]: the inputs that a table sees, the original one first

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> None:
        check_known("lutnet", config, KEYS)
        wanted = {"k": range(1, MAX_K + 1), "levels": range(1, 4)}
        wanted |= {"binarization_level": range(2), "input_expanded": range(2)}
        for key, allowed in wanted.items():
            value = _option(config, key)
            if value not in allowed or not isinstance(value, int):
                law = f"an integer from {allowed[0]} to {allowed[-1]}"
                raise ValueError(f"data_in_{key} of lutnet must be {law}, not {value!r}")
        _image_size(config.get("data_in_dim"))

    def configure(self, config: Mapping[str, Any]) -> Self:
        """Build tables from the weights; with no pruned weights they compute products of signs."""
        config = {**without_na(config), "name": "lutnet"}
        self.check_config(config)
        self._take(config)
        if parametrize.is_parametrized(self):
            raise ValueError("the weight is computed, as by a mask; make it permanent first")
        weight, masks = self._weight_and_mask()
        self._check_size(weight)
        self.is_lut_inference = True
        self.register_buffer("pruning_masks", masks.to(weight.dtype))
        inputs = _seen_inputs(self.num_neurons, self.num_inputs, self.k).to(weight.device)
        self.register_buffer("input_mask", inputs.flatten())
        unmasked = weight[masks != 0].abs()
        gamma = unmasked.mean() if len(unmasked) else weight.new_ones(())
        self.gamma = nn.Parameter(gamma.clone())
        parts = torch.arange(self.levels, 0, -1, dtype=weight.dtype, device=weight.device)
        self.means = nn.Parameter(parts / parts.sum())
        self.weight = nn.Parameter(self.initial_tables(weight, self.pruning_masks))
        return self

    def derive(self) -> None:
        """Rebuild what follows from the config."""
        self.check_config(self.config)
        self._take(self.config)

    def tensor_rules(self) -> dict[str, TensorRule]:
        neurons, inputs = self.num_neurons, self.num_inputs
        return {
            "weight": TensorRule((self.levels * neurons * inputs, 2**self.k)),
            "pruning_masks": TensorRule((neurons, inputs)),
            "input_mask": TensorRule((neurons * inputs * self.k,), "whole", 0, inputs - 1),
            "means": TensorRule((self.levels,)),
            "gamma": TensorRule(()),
            **({} if self.bias is None else {"bias": TensorRule((neurons,))}),
        }

    def _take(self, config: Mapping[str, Any]) -> None:
        self.config, self._kept = config, {}
        self.levels = _option(config, "levels")
        self.k = _option(config, "k") if _option(config, "input_expanded") else 1
        self.binarized = bool(_option(config, "binarization_level"))
        signs = BinaryResidual(self.levels, False, True, levels=self.levels)
        self.formats: dict[str, NumberFormat] = {"data_in": signs}
        if self.binarized:
            self.formats["weight"] = Binary(1, False, True)

    def _weight_and_mask(self) -> tuple[Tensor, Tensor]:
        """Weight and mask, both [out, in]; the weight is unmasked, the mask goes to the tables."""
        mask = vars(self).pop("pruning_masks", None)  # of a layer that keeps its masks apart
        weight = self._parameters["weight"]
        assert weight is not None
        if "weight" in masks_of(self):
            mask = masks_of(self)["weight"]
            detach_mask(self, "weight")
        weights = weight.detach().flatten(1)
        return weights, weights != 0 if mask is None else mask.flatten(1)

    def _check_size(self, weight: Tensor) -> None:
        if tuple(weight.shape) != (self.num_neurons, self.num_inputs):
            raise ValueError("the layer already consists of tables; start from the original layer")
        if self.k > self.num_inputs:
            raise ValueError(
                f"a table of {self.k} inputs needs a layer with as many, not {self.num_inputs}"
            )
        entries = self.levels * weight.numel() * 2**self.k
        if entries > MAX_ENTRIES:
            raise ValueError(
                f"{self.levels} levels of {weight.numel()} tables with 2^{self.k} entries are "
                f"{entries} numbers to train (at most {MAX_ENTRIES}); give a smaller "
                f"data_in_k, or a smaller layer"
            )

    def initial_tables(self, weight: Tensor, masks: Tensor) -> Tensor:
        """[levels · out · in, 2^k]: the original product, plus those of further, pruned inputs."""
        inputs = self.input_mask.view(self.num_neurons, self.num_inputs, self.k)
        weights = weight[:, None].expand(-1, self.num_inputs, -1).gather(2, inputs)
        pruned = masks[:, None].expand(-1, self.num_inputs, -1).gather(2, inputs) == 0
        weights[..., 1:] *= pruned[..., 1:]
        return (weights @ self.corners().T).flatten(0, 1).repeat(self.levels, 1)

    @property
    def trainer(self) -> Self:
        """The object with the trained tables in `weight`: the layer itself."""
        return self

    def corners(self) -> Tensor:
        """[2^k, k]: all sign combinations of k inputs; the last one changes fastest."""
        return generate_truth_table(self.k, device=self.gamma.device)[0].to(self.gamma.dtype)

    def forward(self, input: Tensor) -> Tensor:
        tables = self.table_values().view(self.levels, -1, 2**self.k)
        entries = self.num_neurons * self.num_inputs * int(2 ** (self.k - 1))
        parts = torch.split(self.rows(input), max(1, AT_A_TIME // entries))
        total = torch.cat([self.combined(self._sums(rows, tables)) for rows in parts])
        return self.from_rows(total, input)

    def signs(self, x: Tensor) -> list[Tensor]:
        """Return 1 or -1 for each level of an input."""
        return [_bipolar(level) for level in residual_signs(x, self.means, _bipolar)]

    def _sums(self, rows: Tensor, tables: Tensor) -> list[Tensor]:
        """[rows, out] for each level: summed table outputs of each neuron."""
        look = self._computed if self.training or not self.is_lut_inference else self._looked_up
        columns = self.seen_inputs().unbind(1)
        sums = []
        for sign, table in zip(self.signs(rows), tables, strict=True):
            products = look(sign, columns, table).view(-1, self.num_neurons, self.num_inputs)
            sums.append((products * self.pruning_masks).sum(-1))
        return sums

    def combined(self, sums: Sequence[Tensor]) -> Tensor:
        """[rows, out]: results from the sums of each level."""
        total: Any = 0
        for each, mean in zip(sums, self.means, strict=True):
            total = total + each * mean.abs()
        total = total * self.gamma.abs()
        return torch.as_tensor(total if self.bias is None else total + self.bias)

    def seen_inputs(self) -> Tensor:
        """[out · in, k]: positions in a row of the inputs that each table sees."""
        inputs = self.input_mask.view(self.num_neurons, -1)
        return (inputs + self.first_inputs()[:, None]).view(-1, self.k)

    def table_values(self) -> Tensor:
        """[levels · out · in, 2^k]: entries of the tables, as signs if binarised."""
        return _bipolar(self.weight) if self.binarized else self.weight

    def _computed(self, sign: Tensor, columns: Sequence[Tensor], table: Tensor) -> Tensor:
        """[rows, tables]: sum over corners of entry · product of (1 + corner · input) / 2."""
        value = table
        for column in columns:
            x = sign[:, column, None]
            low, high = value.chunk(2, -1)
            value = low * ((1 - x) / 2) + high * ((1 + x) / 2)
        return value.squeeze(-1)

    def _looked_up(self, sign: Tensor, columns: Sequence[Tensor], table: Tensor) -> Tensor:
        """[rows, tables]: the entry at the corner given by the inputs."""
        index = torch.zeros(1, dtype=torch.long, device=sign.device)
        for column in columns:
            index = index * 2 + (sign[:, column] > 0)
        # laid out like the computed ones, so that sums over inputs have the same order
        return table.gather(1, index.T).T.contiguous()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, k={self.k}, levels={self.levels}"


@layer_variant("linear", "lutnet")
class LinearLUT(LUTNet, LinearNeurons):
    """A linear layer of lookup tables."""

    def __init__(
        self, in_features: int, out_features: int, config: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(in_features, out_features, *args, config=config, **kwargs)


@layer_variant("conv2d", "lutnet")
class Conv2dLUT(LUTNet, Conv2dNeurons):
    """A convolution of lookup tables; they see patches, with zeros as padding.

    `data_in_dim`, the height and width of inputs, is not needed; if given, it is checked.
    """

    def rows(self, x: Tensor) -> Tensor:
        wanted = _image_size(self.config.get("data_in_dim"))
        if wanted is not None and tuple(x.shape[-2:]) != wanted:
            raise ValueError(
                f"data_in_dim says that inputs are {wanted[0]} x {wanted[1]}, not "
                f"{' x '.join(str(n) for n in x.shape[-2:])}; leave it out to take any size"
            )
        return super().rows(x)


def generate_truth_table(k: int, tables_count: int = 1, device: Any = None) -> Tensor:
    """[tables, 2^k, k]: all sign combinations of k inputs for each table; the last changes fastest.

    >>> generate_truth_table(2).tolist()
    [[[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]]
    """
    signs = torch.tensor([-1.0, 1.0], device=device)
    return torch.cartesian_prod(*[signs] * k).view(1, -1, k).repeat(tables_count, 1, 1)


def _image_size(written: Any) -> tuple[int, int] | None:
    """Height and width from `data_in_dim`: a number for both, or two."""
    if written is None:
        return None
    size = tuple(written) if isinstance(written, list | tuple) else (written, written)
    if len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
        raise ValueError(
            f"data_in_dim is {written}; give a height and width from 1, or one number for both"
        )
    return size


DEFAULTS = {"k": 2, "levels": 2, "binarization_level": 1, "input_expanded": 1}


def _option(config: Mapping[str, Any], key: str) -> Any:
    value = config.get(f"data_in_{key}")
    return DEFAULTS[key] if value is None else value


def _bipolar(x: Tensor) -> Tensor:
    """1 for x >= 0, else -1; gradients pass from -1 to 1."""
    return straight_through(x, lambda x: torch.where(x >= 0, 1.0, -1.0).to(x.dtype), (-1.0, 1.0))


def _seen_inputs(num_out: int, num_in: int, k: int) -> Tensor:
    """[out, in, k]: for each connection its own input, then k - 1 others, with a fixed seed."""
    generator = torch.Generator().manual_seed(0)  # independent of the global random state
    original = torch.arange(num_in)[:, None]
    rows = []
    for _ in range(num_out):
        shifts = torch.rand(num_in, max(1, num_in - 1), generator=generator).argsort(1) + 1
        rows.append(torch.cat([original, (original + shifts[:, : k - 1]) % num_in], 1))
    return torch.stack(rows)
