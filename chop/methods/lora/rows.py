"""The op of linear layers with an adapter."""

from chop.ir.op_spec import Adapter, define

ADAPTED = "lora_linear"  # its layer names the row itself

define(
    ADAPTED,
    "module_related_func",
    names="",
    adapter=Adapter("linear", "a LoRA adapter", "insert_lora_adapter", "fuse_lora_weights"),
)
