"""A project that is made once, and copied for each test."""

import shutil

import pytest

from .projects import NAMES, integers_of, made_project, write_onnx


@pytest.fixture(scope="package")
def original(tmp_path_factory):
    return made_project(tmp_path_factory.mktemp("projects"), *NAMES)


@pytest.fixture
def project(original, tmp_path):
    """A project with a quantised network."""
    return shutil.copytree(original, tmp_path / "runs" / "p")


@pytest.fixture
def with_onnx(project):
    """A project with an ONNX file, too."""
    pytest.importorskip("onnxruntime")
    write_onnx(project, integers_of(project))
    return project
