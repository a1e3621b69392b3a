import copy
import torch
from chop.passes.graph.transforms import quantize_transform_pass

pass_args = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {
        "config": {
            "name": "integer",
            "data_in_width": 8, "data_in_frac_width": 4,
            "weight_width": 8, "weight_frac_width": 4,
            "bias_width": 8, "bias_frac_width": 4,
        }
    },
}

data_in_frac_widths = [(16, 8), (8, 6), (8, 4), (4, 2)]
w_in_frac_widths = [(16, 8), (8, 6), (8, 4), (4, 2)]
search_spaces = []
for d_config in data_in_frac_widths:
    for w_config in w_in_frac_widths:
        pass_args['linear']['config']['data_in_width'] = d_config[0]
        pass_args['linear']['config']['data_in_frac_width'] = d_config[1]
        pass_args['linear']['config']['weight_width'] = w_config[0]
        pass_args['linear']['config']['weight_frac_width'] = w_config[1]
        search_spaces.append(copy.deepcopy(pass_args))
before = copy.deepcopy(search_spaces)

metric = MulticlassAccuracy(num_classes=5)
num_batchs = 5
recorded_accs, recorded_losses = [], []
for i, config in enumerate(search_spaces):
    mg, _ = quantize_transform_pass(mg, config)
    j = 0
    acc_avg, loss_avg = 0, 0
    accs, losses = [], []
    for inputs in iter(data_module.train_dataloader()):
        xs, ys = inputs
        preds = mg.model(xs)
        loss = torch.nn.functional.cross_entropy(preds, ys)
        acc = metric(preds, ys)
        accs.append(acc)
        losses.append(loss)
        if j > num_batchs:
            break
        j += 1
    recorded_accs.append(sum(accs) / len(accs))
    recorded_losses.append(sum(losses) / len(losses))
