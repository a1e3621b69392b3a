"""Lab 2's command as the lab sheet has it, with what it prints."""

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from chop.dataset.jsc import FILE

ROOT = Path(__file__).parents[2]
LAYOUTS = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "dataset" / "layouts.py")))
LINE = "./ch transform --config configs/examples/jsc_toy_by_type.toml --task cls --cpu=0"


def test_the_transform_of_the_lab_sheet_runs_as_written(tmp_path, golden):
    (tmp_path / "cache" / "jsc").mkdir(parents=True)
    LAYOUTS.write_cernbox(tmp_path / "cache" / "jsc" / FILE, LAYOUTS.jets())
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environment = os.environ | {"MASE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    words = shlex.split(LINE.replace("./ch", f"{shlex.quote(sys.executable)} -m chop"))
    done = subprocess.run(
        [*words, "--project-dir", str(tmp_path / "out")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "| num_workers" in done.stdout
    lines = [line.rstrip() for line in done.stderr.splitlines()]
    start = lines.index("INFO     Quantized graph histogram:")
    golden("ch_transform_jsc_tiny.txt", "\n".join(lines[start : start + 9]))
    transform = tmp_path / "out" / "jsc-tiny" / "software" / "transform"
    assert lines[-2:] == [
        f"INFO     Saved mase graph to {transform / 'transformed_ckpt'}",
        "INFO     Transformation is completed",
    ]
    assert {file.name for file in transform.iterdir()} == {
        "quantize",
        "transform.json",
        "transformed_ckpt",
    }
