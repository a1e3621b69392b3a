"""How the ops become ONNX nodes, one file per family."""
