def instantiate_linear(in_features, out_features, bias):
    if bias is not None:
        bias = True
    return nn.Linear(
        in_features=in_features,
        out_features=out_features,
        bias=bias)

def redefine_linear_transform_pass(graph, pass_args=None):
    main_config = pass_args.pop('config')
    print(main_config)
    default = main_config.pop('default', None)
    print(default)
    if default is None:
        raise ValueError(f"default value must be provided.")
    i = 0
    pre_in=1
    pre_out=1
    for node in graph.fx_graph.nodes:
        i += 1
        # if node name is not matched, it won't be tracked
        config = main_config.get(node.name, default)['config']
        name = config.get("name", None)
        
        if name is not None:
            ori_module = graph.modules[node.target]
            # Initially assign in_features and out_features to be 16
            # otherwise the size of in_features and out_features will be enlarged each time applying pass
            in_features = 16
            out_features = 16
            bias = ori_module.bias
            if name == "output_only":
                in_features = ori_module.in_features
                out_features = out_features * config["channel_multiplier"]
                pre_out=config["channel_multiplier"]
            elif name == "both":
                in_features = in_features * pre_out
                out_features = out_features * config["channel_multiplier"]
                pre_out = pre_in
                pre_in = config["channel_multiplier"]
            elif name == "input_only":
                in_features = in_features * pre_in
                out_features = ori_module.out_features
            new_module = instantiate_linear(in_features, out_features, bias)
            parent_name, name = get_parent_name(node.target)
            setattr(graph.modules[parent_name], name, new_module)
    return graph, {}



pass_config = {
"by": "name",
"default": {"config": {"name": None}},
"seq_blocks_2": {
    "config": {
        "name": "output_only",
        # weight
        "channel_multiplier": 2,
        }
    },
"seq_blocks_4": {
    "config": {
        "name": "both",
        "channel_multiplier":4,
        }
    },
"seq_blocks_6": {
    "config": {
        "name": "input_only",
        }
    },
}

# this performs the architecture transformation based on the config
mg, _ = redefine_linear_transform_pass(
    graph=mg, pass_args={"config": pass_config})

num_para = sum(p.numel() for p in mg.model.parameters() if p.requires_grad)
mg.model
