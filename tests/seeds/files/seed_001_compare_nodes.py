from chop.passes.graph.transforms.quantize.summary import graph_iterator_compare_nodes
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
import pandas as pd

import pandas as pd
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target

def extract_node_type(node):
    target = get_node_actual_target(node)
    if node.op == "call_module" or get_mase_type(node) in ["builtin_func", "module_related_func", "patched_func", "implicit_func"]:
        return target.__name__ if hasattr(target, '__name__') else str(target)
    return node.target

def compare_graph_nodes(original_graph, quantized_graph):
    data = {
        "Node Name": [],
        "Operation Type": [],
        "Operation": [],
        "Type Before": [],
        "Type After": [],
        "Is Changed": [],
    }
    
    for ori_node, quant_node in zip(original_graph.fx_graph.nodes, quantized_graph.fx_graph.nodes):
        ori_type = extract_node_type(ori_node)
        quant_type = extract_node_type(quant_node)
        data["Node Name"].append(quant_node.name)
        data["Operation Type"].append(get_mase_type(quant_node))
        data["Operation"].append(get_mase_op(quant_node))
        data["Type Before"].append(ori_type)
        data["Type After"].append(quant_type)
        data["Is Changed"].append(ori_type != quant_type)
        
    summary_df = pd.DataFrame(data)
    print(f"Quantization Summary:\n{summary_df.to_markdown(index=False)}")
