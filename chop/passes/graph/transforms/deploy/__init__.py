"""Linear layers that run on the 8-bit kernels of torch."""

from chop.passes.graph.transforms.deploy.deploy import deploy_transform_pass

__all__ = ["deploy_transform_pass"]
