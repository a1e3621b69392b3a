"""Random networks: simulation, integers, ONNX files and circuits agree on each code.

The networks of seeds 0 to 999, each with random and boundary vectors, in 50 tests of 20: the
simulation, the formats `integer`, `qdq` and `qcdq` in onnxruntime, optimised and not, the networks
that are read from these files, and the logic of the unrolled circuit by alkaid's interpreter. The
streaming circuits of 2 networks of each test, 100 in all, and the unrolled ones of 20 networks are
also simulated by Verilator. `make test` compares 40 simulations.
"""

import pytest

from .network_drawing import drawn
from .network_steps import KINDS
from .network_ways import WAYS
from .random_networks import prepared, tried

TESTS, SEEDS = 50, 20
STREAMING = 2  # networks of a test whose streaming circuits are simulated


def agreed(seeds, **circuits):
    tally = tried(seeds, **circuits)
    print(f"seeds {seeds[0]} to {seeds[-1]}\n{tally}")
    assert not tally.findings, "\n\n".join(map(str, tally.findings))
    return tally


def test_random_networks_in_integers_equal_their_simulation():
    tally = agreed(range(2 * SEEDS), ways=["simulation"])
    assert tally.equal["simulation"] > 30


@pytest.mark.rtl
@pytest.mark.parametrize("number", range(TESTS))
def test_random_networks_have_the_same_codes_in_files_and_circuits(number, package):
    for name in ("onnx", "onnxruntime", "alkaid", "verilator"):
        package(name)
    seeds = range(number * SEEDS, (number + 1) * SEEDS)
    tally = agreed(seeds, streaming=STREAMING, unrolled=2 if number % 5 == 0 else 0)
    assert sum(tally.equal.values()) > len(WAYS) * SEEDS // 3


def test_layers_of_all_kinds_have_a_meaning_in_integers():
    """A kind that is always refused would be compared with nothing."""
    missing = {*KINDS}
    for network in map(drawn, range(500)):
        kinds = {step.kind for step in network.steps}
        if kinds & missing and prepared(network)[0] is not None:
            missing -= kinds
    assert not missing
