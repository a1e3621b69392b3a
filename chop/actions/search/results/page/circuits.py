"""The section of the page about circuits: costs, verdicts, layers and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chop.actions.search.results.page.markup import Html, join, table, tag
from chop.actions.search.results.page.numbers import ABSENT, decimals, number
from chop.actions.search.results.page.record import CircuitFacts, SearchRecord, SynthesisFacts

TimedFacts = CircuitFacts | SynthesisFacts
LAYER_COLUMNS = {
    "packed_luts": "LUT",
    "luts": "LUT, unpacked",
    "ffs": "FF",
    "carries": "carry chains",
    "dsps": "DSP",
    "brams": "BRAM",
    "depth": "depth",
}
ABOUT = (
    "Each layer is unrolled into logic of its own, so a circuit takes an input with every clock. "
    "LUTs have six inputs, and two smaller functions share one. What is expected was estimated "
    "from the adders."
)


def circuits_section(record: SearchRecord) -> Html | None:
    """Return the table of all circuits, and the layers of each; None if there are none."""
    if not record.circuits:
        return None
    details = (_layers(number, facts) for number, facts in record.circuits.items())
    return tag(
        "section",
        tag("h2", "Circuits", id="circuits"),
        tag("p", ABOUT),
        _overview(record),
        *details,
        aria_labelledby="circuits",
    )


def _overview(record: SearchRecord) -> Html:
    """Return one row per design: accuracy, costs, clock, and links."""
    by_number = {trial.number: trial for trial in record.trials}
    names = [objective.name for objective in record.objectives]
    head = ["trial", *map(_right, names), *map(_right, ("LUT expected", "LUT", "FF", "depth"))]
    head += [*map(_right, ("clock", "latency")), "simulation", "files"]
    designs = record.circuits or {}
    known = {key: by_number.get(int(key)) for key in designs}
    metrics = {k: {} if trial is None else record.metrics_of(trial) for k, trial in known.items()}
    digits = {name: decimals(m.get(name) for m in metrics.values()) for name in names}
    rows = []
    for key, facts in designs.items():
        made = facts.synthesis
        counts = (made.packed_luts, made.ffs, made.depth) if made else (None, None, None)
        rows.append(
            [
                key,
                *(_cell(metrics[key].get(name), digits[name]) for name in names),
                _cell(_expected(facts)),
                *map(_cell, counts),
                tag("td", _clock(facts), class_="n"),
                tag("td", _latency(facts), class_="n"),
                tag("td", _verdict(facts)),
                tag("td", _files(facts)),
            ]
        )
    return table("Circuits of designs", head, rows, id="circuits-table")


def _right(name: str) -> Html:
    return tag("th", name, scope="col", class_="n")


def _cell(value: float | None, digits: int = 0) -> Html:
    return tag("td", number(value, digits), class_="n")


def _expected(facts: CircuitFacts) -> float | None:
    """Return the LUTs expected of the circuit that was synthesised, if one was."""
    made = facts.synthesis
    return (made.estimate if made and made.estimate else facts.estimate).get("lut")


def _clock(facts: CircuitFacts) -> str:
    """Return the clock, or both if the emitted and the synthesised circuit differ in it."""
    return _told_of_both(facts, _clock_of)


def _latency(facts: CircuitFacts) -> str:
    return _told_of_both(facts, _latency_of)


def _told_of_both(facts: CircuitFacts, told: Callable[[TimedFacts], str]) -> str:
    made = facts.synthesis
    if made is None or made.clock_period in (None, facts.clock_period):
        return told(facts)
    return f"emitted: {told(facts)}; synthesised: {told(made)}"


def _clock_of(facts: TimedFacts) -> str:
    if not facts.clock_period:
        return ABSENT
    return f"{facts.clock_period:g} ns, {1e3 / facts.clock_period:.0f} MHz"


def _latency_of(facts: TimedFacts) -> str:
    if facts.latency_cycles is None or facts.latency_ns is None:
        return ABSENT
    return f"{facts.latency_cycles} cycles, {facts.latency_ns:g} ns"


def _verdict(facts: CircuitFacts) -> str:
    """Return what the simulation, or the reason why there is no circuit, says."""
    if facts.error is not None:
        return facts.error
    done = facts.simulation
    if done is None:
        return "not simulated"
    vectors = sum(int(done.get(key) or 0) for key in ("samples", "boundary_vectors"))
    wrong = int(done.get("mismatches") or 0)
    accuracy = done.get("accuracy")
    told = f"{wrong:,} mismatches in {vectors:,} vectors"
    return told if accuracy is None else f"{told}; accuracy {accuracy:.4f}"


def _files(facts: CircuitFacts) -> Html | str:
    links = [
        tag("a", text, href=target)
        for text, target in (("top module", facts.top), ("sources", facts.sources))
        if target is not None
    ]
    spaced: list[Any] = [part for link in links for part in (link, " ")]
    return join(spaced[:-1]) if spaced else ABSENT


def _layers(number_: str, facts: CircuitFacts) -> Html | None:
    """Return the table of the layers of a synthesised circuit."""
    made = facts.synthesis
    if made is None or not made.layers:
        return None
    shown = [key for key in LAYER_COLUMNS if any(row.get(key) for row in made.layers.values())]
    whole = made.packed_luts or 1
    rows = [
        [
            layer,
            *(_cell(row.get(key)) for key in shown),
            _share((row.get("packed_luts") or 0) / whole),
            tag("td", f"{100 * (row.get('packed_luts') or 0) / whole:.0f} %", class_="n"),
        ]
        for layer, row in made.layers.items()
    ]
    head = ["layer", *(_right(LAYER_COLUMNS[key]) for key in shown)]
    head.append(tag("th", "share of LUTs", scope="col", colspan=2))
    caption = f"Layers of trial {number_}, by {made.tool} for {made.target}"
    return join([tag("h3", f"Trial {number_}"), table(caption, head, rows, class_="bars")])


def _share(share: float) -> Html:
    drawn = tag("rect", width=f"{100 * min(max(share, 0.0), 1.0):.1f}%", height="100%")
    return tag("td", tag("svg", drawn, class_="bar", aria_hidden="true"), class_="drawn")
