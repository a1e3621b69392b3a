"""Lab 2: quantise the linear layers of a network to fixed point, and compare the accuracy."""

import torch
import typer
from tabulate import tabulate

from chop.actions.search import get_sw_runner
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes import Pipeline, quantize_transform_pass, summarize_quantization_analysis_pass
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
from chop.tools.logger import set_logging_verbosity


def fixed_point(width: int, frac_width: int) -> dict:
    """Return the options that quantise inputs, weights and biases of linear layers."""
    config = {"name": "integer"}
    for operand in ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": width, f"{operand}_frac_width": frac_width}
    return {"by": "type", "default": {"config": {"name": None}}, "linear": {"config": config}}


def main(epochs: int = 10, model: str = "jsc-tiny") -> None:
    """Train a network on simulated jets, quantise it to several widths, and test each."""
    set_logging_verbosity("info")
    torch.manual_seed(0)
    data = MaseDataModule("jsc-sim", batch_size=256)
    data.setup()
    about = (get_model_info(model), "cls", data.dataset_info, "cpu")
    network = get_model(model, task="cls", dataset_info=data.dataset_info)
    training = {"max_epochs": epochs, "learning_rate": 1e-2}
    get_sw_runner("basic_train", *about, training)(data, network, {})
    inputs = {"x": next(iter(data.test_dataloader()))[0]}
    prepare = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": inputs})])
    ori_mg, _ = prepare(MaseGraph(network.eval()))

    mg, _ = quantize_transform_pass(ori_mg.clone(), fixed_point(8, 4))
    summarize_quantization_analysis_pass(ori_mg, mg)
    for before, after in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes, strict=True):
        was, now = (get_node_actual_target(node) for node in (before, after))
        if type(was) is not type(now):
            kind, op = get_mase_type(after), get_mase_op(after)
            print(f"{after.name} ({kind}, {op}): {type(was).__name__} -> {type(now).__name__}")
            steps = now.w_quantizer(now.weight) * 2**4
            assert torch.equal(steps, steps.round()), "weights are multiples of 1/16"

    whole = {"data_loader": "test_dataloader", "num_samples": len(data.test_dataset)}
    test = get_sw_runner("basic_evaluation", *about, whole)
    rows = [("float", test(data, ori_mg, {})["accuracy"])]
    for width, frac_width in ((16, 8), (8, 4), (6, 3), (4, 2), (3, 1)):
        rounded, _ = quantize_transform_pass(ori_mg.clone(), fixed_point(width, frac_width))
        said = f"{width} bits, {frac_width} of them fraction"
        rows.append((said, test(data, rounded, {})["accuracy"]))
    print(tabulate(rows, ("linear layers", "test accuracy"), "github", floatfmt=".4f"))


if __name__ == "__main__":
    typer.run(main)
