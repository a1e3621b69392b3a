from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
import pandas as pd
from tabulate import tabulate


def get_data_cfg(node, kw):
    try:
        result = node.meta['mase'].parameters['common']['args'][kw]
    except:
        result = {'type':'NA', 'precision':'NA', 'shape':'NA'}
    return result

headers = ['Node', 'MASE OP', 'Ori Data Type & Prec', 'Quan Data Type & Prec', 'Ori Module', 'Quan Module']
rows = []

for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes):
    rows.append(
        [
            ori_n.name,
            get_mase_op(ori_n),
            get_data_cfg(ori_n, 'data_in_0')['type'] + ': ' + get_data_cfg(ori_n, 'data_in_0')['precision'].__str__(),
            get_data_cfg(n, 'data_in_0')['type'] + ': ' + get_data_cfg(n, 'data_in_0')['precision'].__str__(),
            get_node_actual_target(ori_n).__class__.__name__,
            get_node_actual_target(n).__class__.__name__
        ]
    )
print("Compare nodes:")
print("\n" + tabulate(rows, headers=headers, tablefmt="orgtbl"))
