"""What sources of a circuit that was read from files may contain: logic, but no way out of it.

Verilog can run programs and read and write files, by system tasks, the C interface and directives.
The text is not parsed, so that no trick with quotes and comments hides a word from this check and
shows it to a tool: each `$`, each backtick and each `import` has to be one that is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

__all__ = ["check_sources"]

VERILOG = (".v", ".sv", ".vh", ".svh")
TASKS = frozenset(
    """
    bits ceil changed clog2 countones display error fatal fell finish floor high increment info
    isunknown itor left ln log10 low onehot onehot0 past pow random readmemb readmemh realtime right
    rose rtoi sampled signed size sqrt stable stime stop time unsigned urandom urandom_range warning
    write
    """.split()  # noqa: SIM905
)
DIRECTIVES = frozenset(
    """
    begin_keywords celldefine default_nettype else elsif end_keywords endcelldefine endif ifdef
    ifndef resetall timescale unconnected_drive nounconnected_drive
    """.split()  # noqa: SIM905
)
TASK = re.compile(r"\$(\w*)")
DIRECTIVE = re.compile(r"`(\w*)")
FILE = re.compile(r"\$readmem[bh](?!\w)(?:\s*\(\s*\"([^\"]*)\"\s*,)?")  # no part of an expression
FOREIGN = re.compile(r"\b(import|export)\b(?!\s+\w+\s*::)")


def check_sources(files: Mapping[str, str]) -> None:
    """Raise ValueError for the first source file that could reach beyond the circuit."""
    for name, text in files.items():
        if name.endswith(VERILOG):
            for what in _forbidden(text, files):
                raise ValueError(
                    f"{name} contains {what}, which could read or run something outside the "
                    f"circuit; take it out if you know where the file comes from"
                )


def _forbidden(text: str, files: Collection[str]) -> Iterator[str]:
    yield from (f"${name}" for name in TASK.findall(text) if name not in TASKS)
    yield from (f"`{name}" for name in DIRECTIVE.findall(text) if name not in DIRECTIVES)
    yield from (f"{found[0]}" for found in FOREIGN.finditer(text))
    for found in FILE.finditer(text):
        if found[1] not in files:
            yield f"{found[0].split('(')[0].strip()} of a file that is not among its own"
