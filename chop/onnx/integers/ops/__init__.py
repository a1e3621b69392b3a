"""How each integer op is written as ONNX nodes: one file per family, found by itself."""
