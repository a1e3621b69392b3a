"""The quantizer functions at the import path of newer scripts."""

from chop.passes.graph.transforms.quantize import quantizers

_NAMES = """
    affine_quantizer binary_quantizer block block_fp_quantizer block_log_quantizer
    block_minifloat_quantizer
    integer_floor_quantizer integer_fraction integer_quantizer integer_quantizer_for_hw
    log_quantizer minifloat_denorm_quantizer minifloat_ieee_quantizer mxfp_quantizer
    mxint_quantizer my_clamp my_round quantizer_map residual_sign_quantizer scale_integer_quantizer
    ternary_quantizer unblock
"""
__all__ = _NAMES.split()
globals().update({name: getattr(quantizers, name) for name in __all__})
