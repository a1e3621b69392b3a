"""The commands of docs/own_model.md run as they are written, on its class and its file."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "own_model.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_commands_take_the_own_model_from_training_to_a_certificate(tmp_path, package):
    package("onnxruntime")
    python, (toml,), (commands,) = blocks("python"), blocks("toml"), blocks("bash")
    (tmp_path / "digit_mixer.py").write_text(python[0] + python[-1], encoding="utf-8")
    (tmp_path / "digits.toml").write_text(toml, encoding="utf-8")
    for line in commands.splitlines():
        _, *words = shlex.split(line)
        command = [sys.executable, "-m", "chop", *words, "--project-dir", "mase_output"]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    results = tmp_path / "mase_output" / "digits" / "software" / "search_ckpts"
    assert (results / "report.html").is_file()
    assert list(results.glob("trial_*/graph.json"))
    assert (results.parent / "onnx" / "integer.onnx").is_file()
    certificate = json.loads((tmp_path / "mase_output/digits/certificate.json").read_text())
    assert certificate["verdict"] == "equal"
    assert {way["way"] for way in certificate["ways"]} == {"simulation", "integers", "onnx"}
