"""LogicNets: each neuron is a truth table of a few inputs."""
