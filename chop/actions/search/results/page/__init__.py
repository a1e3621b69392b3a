"""`ch report`: one self-contained page about a search."""

from chop.actions.search.results.page.page import report_page, write_report
from chop.actions.search.results.page.reading import find_record, read_record
from chop.actions.search.results.page.record import SearchRecord

__all__ = ["SearchRecord", "find_record", "read_record", "report_page", "write_report"]
