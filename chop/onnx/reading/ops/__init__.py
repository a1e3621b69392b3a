"""How operators of ONNX are read, one file per family."""
