"""The cocotb test bench as its users read it: a file beside `vectors.json`."""

BENCH_SOURCE = '''\
"""Test of the circuit with cocotb: vectors.json holds its inputs and the results expected.

The codes of a sample are sent beat by beat; a beat is taken at a rising edge of the clock
where valid and ready are both 1. Signals of this test change at falling edges.
"""

import json
import random
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly, with_timeout

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))


def codes(port, beat):
    """Return the codes in the lanes of a beat, the first from the lowest bits."""
    width = port["width"]
    numbers = [(beat >> lane * width) % (1 << width) for lane in range(port["lanes"])]
    negative = 1 << width - 1 if port["signed"] else 1 << width
    return [n - (1 << width) if n >= negative else n for n in numbers]


class Driver:
    """Sends beats to an input port; one that is offered stays until the circuit takes it."""

    def __init__(self, dut, port):
        self.data = getattr(dut, port["name"])
        self.valid = getattr(dut, port["name"] + "_valid")
        self.ready = getattr(dut, port["name"] + "_ready") if VECTORS["handshakes"] else None
        self.beats = [int(beat, 16) for sample in port["beats"] for beat in sample]
        self.taken = 0
        self.offered = False

    def change(self, stalls):
        self.offered = self.taken < len(self.beats) and (self.offered or not stalls)
        self.valid.value = self.offered
        if self.offered:
            self.data.value = self.beats[self.taken]

    def sample(self):
        if self.offered and (self.ready is None or self.ready.value):
            self.taken += 1
            self.offered = False


class Monitor:
    """Takes beats from an output port, and compares their codes with those expected."""

    def __init__(self, dut, port):
        self.port = port
        self.data = getattr(dut, port["name"])
        self.valid = getattr(dut, port["name"] + "_valid")
        self.ready = getattr(dut, port["name"] + "_ready") if VECTORS["handshakes"] else None
        self.beats = [int(beat, 16) for sample in port["beats"] for beat in sample]
        self.taken = 0
        self.takes = True
        self.mismatches = []

    @property
    def is_done(self):
        return self.taken == len(self.beats)

    def change(self, stalls):
        self.takes = self.ready is None or not stalls
        if self.ready is not None:
            self.ready.value = self.takes

    def sample(self):
        if not (self.takes and self.valid.value) or self.is_done:
            return
        per_sample = len(self.port["beats"][0])
        sample, beat = divmod(self.taken, per_sample)
        used = self.port["size"] - beat * self.port["lanes"]  # the last beat may not be full
        expected = codes(self.port, self.beats[self.taken])[:used]
        found = codes(self.port, int(self.data.value))[:used]
        if found != expected:
            where = f"{self.port['name']}, sample {sample}, beat {beat}"
            self.mismatches.append(f"{where}: {found} instead of {expected}")
        self.taken += 1


async def run(dut, stall):
    """Send all samples and compare all results; `stall` says whether a port pauses for a cycle."""
    drivers = [Driver(dut, port) for port in VECTORS["inputs"]]
    monitors = [Monitor(dut, port) for port in VECTORS["outputs"]]
    dut.rst.value = 1
    for port in (*drivers, *monitors):
        port.change(True)
    half = round(500 * VECTORS["clock_period"])
    Clock(dut.clk, 2 * half, unit="ps").start()
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    cycles = 0
    while not all(monitor.is_done for monitor in monitors):
        stalled = stall()  # ports without a ready signal pause together
        for port in (*drivers, *monitors):
            port.change(stall() if VECTORS["handshakes"] else stalled)
        await ReadOnly()
        for port in (*drivers, *monitors):
            port.sample()
        await FallingEdge(dut.clk)
        cycles += 1
    samples = len(VECTORS["outputs"][0]["beats"])
    mismatches = [line for monitor in monitors for line in monitor.mismatches]
    cocotb.log.info("%d samples in %d cycles, mismatches: %d", samples, cycles, len(mismatches))
    if mismatches:
        raise AssertionError(f"mismatches: {len(mismatches)}; the first: {mismatches[0]}")


@cocotb.test()
async def all_samples(dut):
    """All samples, as fast as the circuit takes them."""
    await with_timeout(run(dut, lambda: False), VECTORS["wait_time"], VECTORS["wait_unit"])


@cocotb.test()
async def all_samples_with_pauses(dut):
    """All samples, while each port pauses in half of the clock cycles at random."""
    draws = random.Random(0)
    stalls = run(dut, lambda: draws.random() < 0.5)
    await with_timeout(stalls, VECTORS["wait_time"], VECTORS["wait_unit"])
'''
