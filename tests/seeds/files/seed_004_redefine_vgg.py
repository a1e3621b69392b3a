def instantiate_Conv(in_features, out_features, kernel_size=3,padding=1):
    return nn.Conv2d(
        in_channels=in_features,
        out_channels=out_features,
        kernel_size=kernel_size,
        padding=padding)
def instantiate_BatchNorm(out_features):
    return nn.BatchNorm2d(
        num_features=out_features
    )
    
def redefine_vgg_pass(graph, pass_args=None):
    main_config = pass_args# .pop('config')
    default = main_config.pop('default', None)
    if default is None:
        raise ValueError(f"default value must be provided.")
    i = 0
    pre_out=1
    for node in graph.fx_graph.nodes:
        i += 1
        # if node name is not matched, it won't be tracked
        config = main_config.get(node.name, default)['config']
        name = config.get("name", None)
        #print(node.target in graph.modules.keys())
        
        if 'feature_layers' in get_parent_name(node.target):
            ori_module = graph.modules[node.target]
            if isinstance(ori_module,nn.Conv2d):
                in_features = 128
                out_features = 128
                if name is not None:
                    if name == "output_only":
                        in_features = ori_module.in_channels
                        out_features = out_features * config["channel_multiplier"]
                        pre_out=config["channel_multiplier"]
                    elif name == "both":
                        in_features = in_features * pre_out
                        out_features = out_features * config["channel_multiplier"]
                        pre_out = config["channel_multiplier"]
                    elif name == "input_only":
                        in_features = in_features * pre_out
                        out_features = ori_module.out_channels
                    new_module = instantiate_Conv(in_features, out_features)
                    parent_name, name = get_parent_name(node.target)
                    setattr(graph.modules[parent_name], name, new_module)
            elif isinstance(ori_module,nn.BatchNorm2d):
                new_module =instantiate_BatchNorm(out_features=out_features)
                parent_name, name = get_parent_name(node.target)
                setattr(graph.modules[parent_name], name, new_module)
    return graph, {}
