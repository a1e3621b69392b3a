"""Conv1dInteger and its siblings, at the path where older scripts import them from."""

from chop.passes.graph.transforms.quantize.quantized_modules.conv import __getattr__ as __getattr__
