"""A missing package is named with the command that installs it."""

from chop.extras import install_command


def test_a_clone_installs_pinned_versions_and_others_by_name(tmp_path):
    assert install_command("onnx", tmp_path) == 'pip install "mase[onnx]"'
    (tmp_path / "constraints.txt").touch()
    clone = '.venv/bin/pip install -c constraints.txt -e ".[onnx]"'
    assert install_command("onnx", tmp_path) == clone
