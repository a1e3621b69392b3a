from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.analysis.add_metadata.add_common_metadata import (
        add_common_metadata_analysis_pass,
    )
    from chop.passes.graph.analysis.add_metadata.add_hardware_metadata import (
        add_hardware_metadata_analysis_pass,
    )
    from chop.passes.graph.analysis.add_metadata.add_software_metadata import (
        add_software_metadata_analysis_pass,
    )
    from chop.passes.graph.analysis.add_metadata.init_metadata import init_metadata_analysis_pass

__all__ = [
    "add_common_metadata_analysis_pass",
    "add_hardware_metadata_analysis_pass",
    "add_software_metadata_analysis_pass",
    "init_metadata_analysis_pass",
]

__getattr__ = lazy.importer(__name__, __file__)
