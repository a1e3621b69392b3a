from chop.passes.graph.analysis.cost.flops import calculate_modules as calculate_modules
