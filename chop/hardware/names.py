"""Names of modules and signals: legal in Verilog and VHDL, and unique."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["KEYWORDS", "legal_name"]

# reserved in Verilog, SystemVerilog or VHDL; compared in lower case, as VHDL does
KEYWORDS = frozenset(
    """
    abs accept_on access after alias all always always_comb always_ff always_latch and architecture
    array assert assign assume attribute automatic before begin bind bins binsof bit block body
    break buf buffer bufif0 bufif1 bus byte case casex casez cell chandle checker class clocking
    cmos component config configuration const constant constraint context continue cover covergroup
    coverpoint cross deassign default defparam design disable disconnect dist do downto edge else
    elsif end endcase endchecker endclass endclocking endconfig endfunction endgenerate endgroup
    endinterface endmodule endpackage endprimitive endprogram endproperty endsequence endspecify
    endtable endtask entity enum event eventually exit expect export extends extern file final
    first_match for force foreach forever fork forkjoin function generate generic genvar global
    group guarded highz0 highz1 if iff ifnone ignore_bins illegal_bins implements implies import
    impure in incdir include inertial initial inout input inside instance int integer interconnect
    interface intersect is join join_any join_none label large let liblist library linkage literal
    local localparam logic longint loop macromodule map matches medium mod modport module nand
    negedge nettype new nexttime next nmos nor noshowcancelled not notif0 notif1 null of on open or
    others out output package packed parameter pmos port posedge postponed primitive priority
    procedure process program property protected pull0 pull1 pulldown pullup pulsestyle_ondetect
    pulsestyle_onevent pure rand randc randcase randsequence range rcmos real realtime record ref
    reg register reject reject_on release rem repeat report restrict return rnmos rol ror rpmos
    rtran rtranif0 rtranif1 s_always s_eventually s_nexttime s_until s_until_with scalared select
    sequence severity shared shortint shortreal showcancelled signal signed sla sll small soft
    solve specify specparam sra srl static string strong strong0 strong1 struct subtype super
    supply0 supply1 sync_accept_on sync_reject_on table tagged task then this throughout time
    timeprecision timeunit to tran tranif0 tranif1 transport tri tri0 tri1 triand trior trireg type
    typedef unaffected union unique unique0 units unsigned until until_with untyped use uwire var
    variable vectored virtual void wait wait_order wand weak weak0 weak1 when while wildcard wire
    with within wor xnor xor
    """.split()  # noqa: SIM905
)


def legal_name(name: str, taken: Collection[str] = ()) -> str:
    """Return a name like `name` that Verilog and VHDL accept and that is not `taken`.

    >>> legal_name("features.0"), legal_name("_0"), legal_name("output"), legal_name("a", ["A"])
    ('features_0', 'n_0', 'output_n', 'a_1')
    """
    text = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    if not text or not text[0].isalpha():
        text = f"n_{text}" if text else "n"
    if text.lower() in KEYWORDS:
        text += "_n"
    lower = {other.lower() for other in taken}
    if text.lower() not in lower:
        return text
    number = 1
    while f"{text}_{number}".lower() in lower:
        number += 1
    return f"{text}_{number}"
