"""Graphs as large as ResNet-18, ViT-S and BERT: their metadata is complete and true."""

import time
from collections import Counter

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta
from chop.passes import Pipeline, verify_metadata_analysis_pass
from chop.passes.graph.analysis.verify import MetadataError
from chop.passes.graph.utils import get_node_by_name

ANNOTATE = Pipeline(
    ["init_metadata", "add_common_metadata", "add_software_metadata", "add_hardware_metadata"]
)


def image(batch, size):
    return {"x_BCHW": torch.randn(batch, 3, size, size)}


def sentences(batch, length, vocab_size):
    ids = torch.randint(1, vocab_size, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


# name -> model of true size, inputs, millions of parameters, number of nodes
FULL = {
    "resnet18": (lambda n: n.resnet18(), lambda: image(2, 224), 11.69, 71),
    "vit_small": (lambda n: n.vit_small(), lambda: image(2, 224), 22.05, 328),
    "vit_small_matmul": (lambda n: n.vit_small(fused=False), lambda: image(2, 224), 22.05, 388),
    "bert": (lambda n: n.bert(), lambda: sentences(2, 128, 30522), 110.1, 509),
    "bert_einsum": (lambda n: n.bert(einsum=True), lambda: sentences(2, 128, 30522), 110.1, 497),
}
VIT = {"image_size": 16, "patch_size": 4, "dim": 16, "num_heads": 2, "num_classes": 5}
BERT = {"vocab_size": 50, "dim": 16, "num_heads": 2, "max_length": 16}
# the same networks, small enough to be run
REDUCED = {
    "resnet18": (lambda n: n.resnet18(width=4, num_classes=5), lambda: image(2, 32)),
    "vit_small": (lambda n: n.vit_small(**VIT, depth=3), lambda: image(2, 16)),
    "vit_small_matmul": (lambda n: n.vit_small(**VIT, depth=3, fused=False), lambda: image(2, 16)),
    "bert": (lambda n: n.bert(**BERT, depth=3), lambda: sentences(2, 8, 50)),
    "bert_einsum": (lambda n: n.bert(**BERT, depth=3, einsum=True), lambda: sentences(2, 8, 50)),
}


def annotate(model, dummy_in, **options):
    graph = MaseGraph(model)
    ANNOTATE(graph, {"add_common_metadata": {"dummy_in": dummy_in, **options}})
    return graph


def equal(ours, theirs):
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[k], theirs[k]) for k in ours)
    return torch.equal(ours, theirs)


@pytest.fixture(params=FULL)
def full(request, networks):
    build, inputs, millions, num_nodes = FULL[request.param]
    with torch.device("meta"):
        model = build(networks)
    graph = annotate(model, inputs(), add_value=False, force_device_meta=True)
    return graph, millions, num_nodes


@pytest.fixture(params=REDUCED)
def reduced(request, networks):
    build, inputs = REDUCED[request.param]
    return build(networks), inputs()


class TestTrueSize:
    @pytest.mark.sampled(1)
    def test_metadata_is_complete_and_accepted(self, full):
        graph, millions, num_nodes = full
        parameters = sum(p.numel() for p in graph.model.parameters())
        assert round(parameters / 1e6, 2) == pytest.approx(millions, abs=0.01)
        assert len(graph.nodes) == num_nodes
        assert verify_metadata_analysis_pass(graph, {"strict": True})[1] == {}
        for node in graph.nodes:
            common, hardware = node.meta["mase"]["common"], node.meta["mase"]["hardware"]
            assert {"mase_type", "mase_op", "args", "results"} <= common.keys()
            assert common["mase_type"] != "patched_func"
            assert "is_implicit" in hardware
            assert node.meta["mase"]["software"]
            listed = [arg for arg in common["args"].values() if isinstance(arg, TensorMeta)]
            tensors = [n for n in node.all_input_nodes if _gives_tensors(n)]
            assert node.op == "output" or len(listed) >= len(tensors)

    @pytest.mark.slow
    def test_clones_are_complete_too(self, full):
        graph, _, _ = full
        assert verify_metadata_analysis_pass(graph.clone())[1] == {}


def _gives_tensors(node):
    return any(node.meta["mase"].common.results.tensors())


@pytest.mark.slow
def test_resnet18_is_what_it_is_known_for(networks):
    graph = annotate(networks.resnet18(), image(1, 224), add_value=False, force_device_meta=True)
    ops = Counter(node.meta["mase"]["common"]["mase_op"] for node in graph.nodes)
    assert ops == {
        "placeholder": 1,
        "conv2d": 20,
        "batch_norm2d": 20,
        "relu": 17,
        "max_pool2d": 1,
        "add": 8,
        "adaptive_avg_pool2d": 1,
        "flatten": 1,
        "linear": 1,
        "output": 1,
    }
    conv = get_node_by_name(graph.fx_graph, "layer4_1_conv2").meta["mase"]["common"]
    assert conv["results"]["data_out_0"]["shape"] == [1, 512, 7, 7]
    assert conv["args"]["weight"]["shape"] == [512, 512, 3, 3]


def test_bert_ties_its_decoder_and_masks_with_the_least_number(networks):
    model = networks.bert(**BERT, depth=1)
    graph = annotate(model, sentences(2, 8, 50))
    decoder = get_node_by_name(graph.fx_graph, "decoder").meta["mase"]
    assert decoder.module.weight is graph.modules["embeddings.word_embeddings"].weight
    mask = get_node_by_name(graph.fx_graph, "mul").meta["mase"]["common"]["results"]["data_out_0"]
    assert mask["shape"] == [2, 1, 1, 8]
    assert mask["value"].min() == torch.finfo(torch.float32).min
    assert list(decoder.common.args) == ["data_in_0", "weight", "bias"]


class TestReducedSize:
    def test_a_real_run_is_accepted_and_computes_what_the_model_computes(self, reduced):
        model, dummy_in = reduced
        model.eval()
        graph = annotate(model, dummy_in)
        assert verify_metadata_analysis_pass(graph, {"strict": True})[1] == {}
        assert equal(graph.model(**dummy_in), model(**dummy_in))

    @pytest.mark.sampled(1)
    def test_the_meta_device_sees_the_same(self, reduced):
        model, dummy_in = reduced
        real = annotate(model, dummy_in, add_value=False)
        meta = annotate(model, dummy_in, add_value=False, force_device_meta=True)
        for ours, theirs in zip(real.nodes, meta.nodes, strict=True):
            if "device" in ours.meta["mase"]["common"]["args"]:
                continue  # torch.arange(…, device=x.device)
            if ours.target is getattr and ours.args[1] == "device":
                continue
            assert ours.meta["mase"].parameters == theirs.meta["mase"].parameters

    def test_annotation_in_train_mode_leaves_no_trace(self, reduced):
        model, dummy_in = reduced
        state = {key: value.clone() for key, value in model.state_dict().items()}
        rng = torch.get_rng_state()
        annotate(model, dummy_in)
        assert torch.equal(torch.get_rng_state(), rng)
        assert all(torch.equal(state[key], now) for key, now in model.state_dict().items())
        assert model.training

    def test_a_mutated_graph_is_rejected_with_the_nodes_name(self, reduced):
        model, dummy_in = reduced
        graph = annotate(model, dummy_in)
        layers = [n for n in graph.nodes if isinstance(n.meta["mase"].module, nn.Linear)]
        victim = layers[len(layers) // 2]
        parent, _, leaf = victim.target.rpartition(".")
        old = victim.meta["mase"].module
        setattr(graph.modules[parent], leaf, nn.Linear(old.in_features, old.out_features + 1))
        with pytest.raises(MetadataError, match=f"^node '{victim.name}': parameter 'weight' has"):
            verify_metadata_analysis_pass(graph, {"strict": True})


def test_one_model_can_be_traced_again_and_again(networks):
    model = networks.bert(**BERT, depth=1)
    names = [[node.name for node in MaseGraph(model).nodes] for _ in range(3)]
    assert names[0] == names[1] == names[2]


def test_annotating_a_large_graph_is_quick(networks):
    with torch.device("meta"):
        model = networks.bert()
    start = time.process_time()
    annotate(model, sentences(1, 8, 50), add_value=False, force_device_meta=True)
    assert time.process_time() - start < 10  # takes about half a second
