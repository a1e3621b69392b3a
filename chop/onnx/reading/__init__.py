"""ONNX files as networks of torch layers.

scan.py, files.py and tensors.py read and check the file, network.py and nodes.py go through its
nodes, reader.py builds the graph, and ops/ has one function per operator; bodies.py has the nodes
that others stand for.
"""

from chop.onnx.reading.bodies import function_operators
from chop.onnx.reading.errors import UnreadableModel
from chop.onnx.reading.network import NetworkInput, OnnxNetwork, read_model, read_network
from chop.onnx.reading.table import known_operators

__all__ = [
    "NetworkInput",
    "OnnxNetwork",
    "UnreadableModel",
    "function_operators",
    "known_operators",
    "read_model",
    "read_network",
]
