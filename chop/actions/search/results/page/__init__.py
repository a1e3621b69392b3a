"""`ch report`: one self-contained page about a search."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.actions.search.results.page.compared_page import comparison_page, write_comparison
    from chop.actions.search.results.page.live import serve
    from chop.actions.search.results.page.page import report_page, write_report
    from chop.actions.search.results.page.reading import find_record, read_record
    from chop.actions.search.results.page.record import SearchRecord

__all__ = [
    "SearchRecord",
    "comparison_page",
    "find_record",
    "read_record",
    "report_page",
    "serve",
    "write_comparison",
    "write_report",
]

__getattr__ = lazy.importer(__name__, __file__)
