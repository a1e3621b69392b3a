"""The op of deployed layers."""

from chop.ir.op_spec import Final, define

DEPLOYED = "deployed_linear"  # its layers name the row themselves

define(
    DEPLOYED,
    "module",
    names="",
    final=Final(
        "runs a kernel of torch",
        "use the quantised graph, which is saved without the pass 'deploy'",
    ),
)
