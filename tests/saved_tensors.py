"""Tensors of saved graphs, replaced as somebody would who knows what else the files say."""

import json

from safetensors.torch import save_file

from chop.ir.graph.meta_file import tensor_table


def replace_tensors(folder, tensors):
    """Write tensors into a saved graph, and their types and sizes."""
    tensors = {key: tensor.contiguous().clone() for key, tensor in tensors.items()}
    save_file(tensors, folder / "state_dict.safetensors", {"format": "pt"})
    content = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    text = json.dumps(content | {"tensors": tensor_table(tensors)})
    (folder / "graph.json").write_text(text, encoding="utf-8")
