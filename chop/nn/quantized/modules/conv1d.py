"""Conv1dInteger and its siblings, at the import path of newer scripts."""

from chop.passes.graph.transforms.quantize.quantized_modules.conv import __getattr__ as __getattr__
