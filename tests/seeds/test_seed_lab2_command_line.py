"""Lab 2's command as the lab sheet has it, with what it prints."""

LINE = "./ch transform --config configs/examples/jsc_toy_by_type.toml --task cls --cpu=0"


def test_the_transform_of_the_lab_sheet_runs_as_written(shell, tmp_path, golden):
    done = shell(LINE)
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
