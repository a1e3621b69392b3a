"""`ch report`: one self-contained page about a search."""

from chop.actions.search.results.page.comparison_page import comparison_page, write_comparison
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
