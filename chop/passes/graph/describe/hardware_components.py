"""The ops with hardware of MASE, and the files of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Component:
    module: str
    files: tuple[str, ...]


INTERNAL: dict[str, Component] = {
    "linear": Component(
        "fixed_linear",
        (
            "cast/rtl/fixed_cast.sv",
            "fixed_arithmetic/rtl/fixed_dot_product.sv",
            "fixed_arithmetic/rtl/fixed_vector_mult.sv",
            "fixed_arithmetic/rtl/fixed_accumulator.sv",
            "fixed_arithmetic/rtl/fixed_adder_tree.sv",
            "fixed_arithmetic/rtl/fixed_adder_tree_layer.sv",
            "fixed_arithmetic/rtl/fixed_mult.sv",
            "common/rtl/register_slice.sv",
            "common/rtl/join2.sv",
            "common/rtl/skid_buffer.sv",
            "linear/rtl/fixed_linear.sv",
        ),
    ),
    "relu": Component("fixed_relu", ("activations/rtl/fixed_relu.sv",)),
}
