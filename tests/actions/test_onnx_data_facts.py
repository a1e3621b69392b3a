"""ONNX files record classes and scaler of their data, and are used with data that fit them."""

import json

import numpy as np
import pytest

from chop.dataset import MaseDataModule
from chop.models import get_model

from .own_network import ROWS, saved_network

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")


@pytest.fixture
def exported(here, tmp_path):
    """The ONNX file of a quantised network, and the words that name its data."""
    with saved_network(here, tmp_path, "facts-own", width=8) as (words, saved):
        code, out, err = here("export", *words, "--load", saved, "--format", "qdq")
        assert code == 0, out + err
        yield (
            tmp_path / "runs/p/software/onnx/qdq.onnx",
            ["csv", "--data-path", tmp_path / "rows.csv"],
        )


def metadata(file):
    return {prop.key: prop.value for prop in onnx.load(file).metadata_props}


def with_note(file, key, text):
    """Change a note in the metadata of a file."""
    model = onnx.load(file)
    (prop,) = (prop for prop in model.metadata_props if prop.key == key)
    prop.value = text
    onnx.save(model, file)


def losses(folder):
    files = sorted(folder.rglob("test_metrics*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text())["metrics"]["test_loss_epoch"] for file in files]


def test_a_consumer_predicts_classes_of_raw_features_by_the_metadata(exported):
    file, (_, _, rows) = exported
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["mase.trained_on"])
    raw = np.loadtxt(rows, delimiter=",", skiprows=1, usecols=(0, 1))
    x = (raw - facts["scaler"]["mean"]) / facts["scaler"]["deviation"]
    (scores,) = session.run(None, {session.get_inputs()[0].name: x.astype(np.float32)})
    assert {facts["classes"][i] for i in scores.argmax(1)} <= {"no", "yes"}
    data = MaseDataModule("csv", custom_path=rows)
    data.setup()
    expected = np.unique(
        np.concatenate([data._splits[s].x for s in ("train", "validation", "test")]), axis=0
    )
    np.testing.assert_allclose(np.unique(x.astype(np.float32), axis=0), expected, rtol=1e-6)
    assert facts["features"] == ["a", "b"]
    assert json.loads(metadata(file)["mase.made_from"]) == {"model": "facts-own", "dataset": "csv"}


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_data_are_standardised_and_labelled_as_those_of_the_file(exported, here, tmp_path, runtime):
    file, words = exported
    place = ("--project-dir", tmp_path / "tests", "--cpu", 0, "--runtime", runtime)
    code, out, err = here("test", file, *words, *place)
    assert code == 0, out + err
    # twice the features and the classes in the other order: the record of the file maps both back
    facts = json.loads(metadata(file)["mase.trained_on"])
    scaler = {key: [v * 2 for v in values] for key, values in facts["scaler"].items()}
    facts |= {"classes": facts["classes"][::-1], "scaler": scaler}
    doubled = [
        (int(a) * 2, int(b) * 2, {"yes": "no", "no": "yes"}[c])
        for a, b, c in (line.split(",") for line in ROWS.split()[1:])
    ]
    other = tmp_path / "other.csv"
    other.write_text("a,b,kind\n" + "".join(f"{a},{b},{c}\n" for a, b, c in doubled))
    with_note(file, "mase.trained_on", json.dumps(facts))
    code, out, err = here("test", file, "csv", "--data-path", other, *place)
    assert code == 0, out + err
    assert "mapped by name to those of the network, yes, no" in out + err
    first, second = losses(tmp_path / "tests")
    assert first == pytest.approx(second, rel=1e-5)  # features are rescaled in float


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_data_of_other_classes_are_refused_in_one_sentence(exported, here, tmp_path, runtime):
    file, _ = exported
    other = tmp_path / "other.csv"
    other.write_text(ROWS.replace("yes", "cat").replace("no", "dog"))
    code, _, err = here("test", file, "csv", "--data-path", other, "--cpu", 0, "--runtime", runtime)
    assert code in (1, 2)
    last = err.strip().splitlines()[-1]
    assert (
        "has the classes cat, dog, but the network was trained on those of 'csv', no, yes" in last
    )


def test_a_file_of_another_number_of_classes_is_refused(exported, here, tmp_path):
    file, _ = exported
    other = tmp_path / "other.csv"
    other.write_text(ROWS + "1,1,maybe\n" * 5)
    code, _, err = here("test", file, "csv", "--data-path", other, "--cpu", 0)
    assert code == 2
    assert "maybe, no, yes, but the network was trained on those of 'csv', no, yes" in err


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        "[1]",
        '{"dataset": 3}',
        '{"dataset": "csv", "scaler": {"mean": [0], "deviation": [0]}}',
    ],
)
def test_a_damaged_note_is_refused_in_one_sentence(exported, here, text):
    file, words = exported
    with_note(file, "mase.trained_on", text)
    code, _, err = here("test", file, *words, "--cpu", 0)
    assert code in (1, 2)
    last = err.strip().splitlines()[-1]
    assert "qdq.onnx is damaged: " in last
    assert "export it again" in last


def test_a_file_without_a_record_says_what_its_outputs_are_taken_for(exported, here):
    file, words = exported
    with_note(file, "mase.trained_on", "{}")
    code, out, err = here("test", file, *words, "--cpu", 0)
    assert code == 0
    assert (
        "does not record its classes; its outputs are taken for no, yes, in this order" in out + err
    )


def test_a_model_in_python_warns_of_classes_in_another_order(exported, caplog):
    file, (_, _, rows) = exported
    data = MaseDataModule("csv", custom_path=rows)
    get_model(str(file), dataset_info=data.dataset_info)
    assert "are the classes" not in caplog.text
    facts = json.loads(metadata(file)["mase.trained_on"])
    with_note(file, "mase.trained_on", json.dumps(facts | {"classes": ["yes", "no"]}))
    get_model(str(file), dataset_info=data.dataset_info)
    assert "are the classes yes, no, and those of data set 'csv' are no, yes" in caplog.text


def test_images_record_how_their_pixels_are_normalised():
    from chop.dataset.facts import DataFacts
    from chop.dataset.images import Normalize

    facts = DataFacts("images", ("a", "b"), pixels=Normalize((0.5,), (0.25,)))
    assert facts.plain()["pixels"] == {"mean": (0.5,), "std": (0.25,), "peak": 255.0}
    assert DataFacts.read(json.loads(json.dumps(facts.plain()))) == facts
    for wrong in (
        {"mean": [0.5], "std": [0], "peak": 1},
        {"mean": [0.5], "std": [1], "peak": 0},
        3,
    ):
        with pytest.raises(ValueError, match="pixels"):
            DataFacts.read({"dataset": "images", "pixels": wrong})
