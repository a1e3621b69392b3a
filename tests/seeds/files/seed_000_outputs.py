# Get input data
test_x = iter(data_module.val_dataloader())
xs, ys = next(test_x)

# Find quantized relu module
for ori_n, n in zip(ori_mg.fx_graph.nodes, mg.fx_graph.nodes):
    if (get_mase_op(n) == 'relu'):
        ori_relu = get_node_actual_target(ori_n)
        relu = get_node_actual_target(n)
    if (get_mase_op(n) == 'linear'):
        ori_linear = get_node_actual_target(ori_n)
        linear = get_node_actual_target(n)
print('Ori_ReLU:', ori_relu(xs))
print('ReLU:', relu(xs))
print('Ori Linear:', ori_linear(xs))
print('Linear:', linear(xs))
