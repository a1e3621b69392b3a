"""The ways to register a model: decorators, the labs' dictionaries, a file of the user."""

import pytest
from torch import nn

from chop.actions.user_code import UserCodeError, import_user_file
from chop.dataset import MaseDatasetInfo
from chop.models import (
    MODELS,
    MaseModelInfo,
    get_model,
    get_model_info,
    model,
    register_mase_checkpoint,
    register_mase_model,
)
from chop.models.physical import PHYSICAL_MODELS
from chop.models.toy import TOY_MODELS
from chop.models.vision import VISION_MODELS

PHYSICAL = {
    "model_source": "physical",
    "task_type": "physical",
    "physical_data_point_classification": True,
    "is_fx_traceable": True,
}


# as in the labs' report
class JSC_Tiny_x10(nn.Module):
    def __init__(self, info):
        super(JSC_Tiny_x10, self).__init__()  # noqa: UP008
        self.seq_blocks = nn.Sequential(
            # 1st Layer
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Linear(16, 40),  # Increased number of output features
            # Additional Layers
            nn.BatchNorm1d(40),
            nn.ReLU(),
            nn.Linear(40, 25),  # New layer
            # Final Layer
            nn.BatchNorm1d(25),
            nn.ReLU(),
            nn.Linear(25, 5),  # Output layer with 5 features as in the original model
        )

    def forward(self, x):
        return self.seq_blocks(x)


def get_jsc_x10(info):
    return JSC_Tiny_x10(info)


class TestTheLabsDictionary:
    def test_a_student_adds_a_network_whose_info_was_copied_from_another(self, jets):
        info = MaseModelInfo("jsc-s", **PHYSICAL)
        PHYSICAL_MODELS["jsc-tiny-x10"] = {"model": get_jsc_x10, "info": info}
        assert get_model_info("jsc-tiny-x10").name == "jsc-tiny-x10"
        assert get_model_info("jsc-s").name == "jsc-s"
        built = get_model("jsc-tiny-x10", task="cls", dataset_info=jets, pretrained=False)
        assert isinstance(built, JSC_Tiny_x10)
        assert "jsc-tiny-x10" in MODELS
        assert list(PHYSICAL_MODELS)[-1] == "jsc-tiny-x10"
        assert PHYSICAL_MODELS["jsc-tiny-x10"]["model"] is get_jsc_x10

    def test_a_second_assignment_replaces_the_first(self, jets):
        for width in (8, 9):
            build = lambda info, width=width: nn.Linear(16, width)  # noqa: E731
            PHYSICAL_MODELS["mine"] = {"model": build, "info": MaseModelInfo("mine", **PHYSICAL)}
        assert get_model("mine", dataset_info=jets).out_features == 9

    def test_update_and_delete_work_as_in_any_dictionary(self):
        entry = {"model": get_jsc_x10, "info": MaseModelInfo("a", **PHYSICAL)}
        PHYSICAL_MODELS.update({"a": entry, "b": entry})
        assert {"a", "b"} <= PHYSICAL_MODELS.keys()
        del PHYSICAL_MODELS["a"]
        assert "a" not in MODELS
        assert "b" in MODELS

    def test_every_family_shows_its_own(self):
        assert {"jsc-tiny", "mlp"} <= PHYSICAL_MODELS.keys()
        assert {"toy", "toy_tiny", "toy_convnet", "toy_custom_fn"} == TOY_MODELS.keys()
        assert {"vgg7", "resnet18", "lfc"} <= VISION_MODELS.keys()
        assert not TOY_MODELS.keys() & VISION_MODELS.keys()
        shown = len(PHYSICAL_MODELS) + len(TOY_MODELS) + len(VISION_MODELS)
        assert shown == len(MODELS)
        assert "toy_convnet" in repr(TOY_MODELS)

    def test_getters_of_vision_and_toys_get_what_they_ask_for(self, pictures):
        seen = {}

        def vision(info, pretrained):
            seen["vision"] = info, pretrained
            return nn.Identity()

        def toy(info, pretrained=False, **kwargs):
            seen["toy"] = info, pretrained, kwargs
            return nn.Identity()

        facts = {"task_type": "vision", "image_classification": True}
        VISION_MODELS["v"] = {"model": vision, "info": MaseModelInfo("v", "torchvision", **facts)}
        TOY_MODELS["t"] = {"model": toy, "info": MaseModelInfo("t", "toy", **facts)}
        get_model("v", dataset_info=pictures, pretrained=True)
        get_model("t", dataset_info=pictures, depth=3)
        assert seen == {"vision": (pictures, True), "toy": (pictures, False, {"depth": 3})}

    def test_what_does_not_belong_or_is_no_entry_is_refused(self):
        with pytest.raises(ValueError, match=r"'x' is not a toy model: .*model_source=physical"):
            TOY_MODELS["x"] = {"model": get_jsc_x10, "info": MaseModelInfo("x", **PHYSICAL)}
        with pytest.raises(ValueError, match=r"must be {'model': builder, 'info'"):
            PHYSICAL_MODELS["x"] = get_jsc_x10
        with pytest.raises(ValueError, match="must be"):
            PHYSICAL_MODELS["x"] = {"modle": get_jsc_x10}
        with pytest.raises(TypeError, match=r"info of 'x' must be MaseModelInfo\(…\), not 'jsc'"):
            PHYSICAL_MODELS["x"] = {"model": get_jsc_x10, "info": "jsc"}
        with pytest.raises(KeyError, match="unknown toy model 'toi'; did you mean 'toy'"):
            TOY_MODELS["toi"]


class TestDecorators:
    def test_a_function_becomes_a_model(self, jets):
        @model("two-layers", "deux-couches")
        def two_layers(info, *, width: int = 8):
            """Two layers."""
            hidden = nn.Linear(info.num_features, width)
            return nn.Sequential(hidden, nn.ReLU(), nn.Linear(width, info.num_classes))

        assert two_layers(jets)[0].out_features == 8
        for name in ("two-layers", "deux-couches"):
            assert get_model(name, dataset_info=jets, width=3)[0].out_features == 3
        info = get_model_info("two-layers")
        assert info.is_physical_model
        assert info.is_fx_traceable

    def test_a_notebook_cell_may_run_twice_but_another_function_needs_another_name(self):
        def cell():
            @model("again")
            def again(info):
                return nn.Identity()

        cell()
        cell()
        with pytest.raises(ValueError, match="model 'again' registered twice"):
            model("again")(get_jsc_x10)
        with pytest.raises(ValueError, match="model 'vgg7' registered twice"):
            model("vgg7")(get_jsc_x10)

    def test_a_wrong_type_is_told_at_the_decorator(self):
        with pytest.raises(ValueError, match="unknown task_type 'visual'"):
            model("x", task_type="visual")
        with pytest.raises(ValueError, match="needs sequence_classification"):
            model("x", task_type="nlp", image_classification=True)

    def test_an_unknown_flag_is_told_at_the_decorator(self):
        with pytest.raises(KeyError, match="unknown flag of model 'x': 'regresion'; did you mean"):
            model("x", regresion=True)

    @pytest.mark.parametrize(
        ("flags", "tasks"),
        [
            ({}, ["cls"]),
            ({"regression": True}, ["cls", "reg"]),
            ({"regression": True, "physical_data_point_classification": False}, ["reg"]),
            ({"task_type": "vision", "image_segmentation": True}, ["cls", "dense"]),
            (
                {"task_type": "vision", "image_segmentation": True, "image_classification": False},
                ["dense"],
            ),
            ({"task_type": "nlp", "causal_LM": True}, ["lm"]),
        ],
    )
    def test_other_tasks_add_to_classification_unless_it_is_excluded(self, flags, tasks):
        model("several-tasks", **flags)(get_jsc_x10)
        assert get_model_info("several-tasks").tasks == tasks

    @pytest.mark.parametrize(
        ("task_type", "flag"),
        [("physical", "physical_data_point_classification"), ("vision", "image_classification")],
    )
    def test_the_advice_names_the_flag_of_the_task_type(self, jets, task_type, flag):
        model("numbers", task_type=task_type, regression=True, **{flag: False})(get_jsc_x10)
        with pytest.raises(ValueError, match=f"supports reg, not cls; .* with {flag}=True"):
            get_model("numbers", dataset_info=jets)

    def test_a_model_for_regression_takes_features_or_images(self):
        model("numbers", regression=True)(lambda info: nn.Linear(2, info.num_outputs))
        for shape in ({"num_features": 2}, {"image_size": (1, 1, 2)}):
            info = MaseDatasetInfo(name="numbers", num_targets=3, **shape)
            assert get_model("numbers", task="reg", dataset_info=info).out_features == 3

    def test_the_later_labs_register_a_class_and_functions_for_its_checkpoints(self, jets):
        @register_mase_model("jsc-new", checkpoints=["jsc-new-a", "jsc-new-b"], **PHYSICAL)
        class New(nn.Module):
            def __init__(self, info, width=5):
                super().__init__()
                self.fc = nn.Linear(info["num_features"], width)

        @register_mase_checkpoint("jsc-new-b")
        def wide(pretrained: bool = False, **kwargs):
            return New(kwargs["dataset_info"], width=50)

        assert get_model("jsc-new", dataset_info=jets).fc.out_features == 5
        assert get_model("jsc-new-a", dataset_info=jets).fc.out_features == 5
        assert get_model("jsc-new-b", pretrained=False, dataset_info=jets).fc.out_features == 50
        assert get_model_info("jsc-new-b").name == "jsc-new"

    def test_a_checkpoint_belongs_to_a_model(self):
        with pytest.raises(ValueError, match="unknown model 'nobodys'"):
            register_mase_checkpoint("nobodys")(get_jsc_x10)


MY_MODELS = """
from torch import nn
from chop.models import model
from my_layers import WIDTH

@model("from-a-file")
def build(info):
    return nn.Linear(info.num_features, WIDTH)
"""


class TestAFileOfTheUser:
    def test_its_models_are_there_and_it_may_import_its_neighbours(self, tmp_path, jets):
        (tmp_path / "my_layers.py").write_text("WIDTH = 7\n")
        (tmp_path / "my_models.py").write_text(MY_MODELS)
        module = import_user_file(tmp_path / "my_models.py")
        assert module.WIDTH == 7
        assert get_model("from-a-file", dataset_info=jets).out_features == 7

    def test_it_is_imported_once_by_whatever_path(self, tmp_path, monkeypatch):
        (tmp_path / "once.py").write_text("COUNTED = []\n")
        monkeypatch.chdir(tmp_path)
        first = import_user_file("once.py")
        assert import_user_file(tmp_path / "once.py") is first
        assert import_user_file(tmp_path / "." / "once.py") is first

    def test_files_of_one_name_in_two_folders_are_two_modules(self, tmp_path):
        for number in (1, 2):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "json.py").write_text(f"number = {number}\n")
            module = import_user_file(folder / "json.py")
            assert module.number == number
        import json

        assert json.loads("1") == 1

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("x = 1\ny = x +\n", r"bad\.py, line 2: SyntaxError: invalid syntax"),
            ("x = 1\n\nimport nowhere_to_be_found\n", r"line 3: ModuleNotFoundError: No module"),
            ("def f():\n    raise OSError\n\nf()\n", r"bad\.py, line 2: OSError$"),
            ("from chop.models import model\nmodel('x', task_type='y')\n", "line 2: ValueError: m"),
            ("import sys\nsys.exit(3)\n", r"bad\.py, line 2: it would end .* \(SystemExit: 3\); a"),
            ("raise SystemExit\n", r"bad\.py, line 1: it would end the program \(SystemExit\); a"),
        ],
    )
    def test_what_is_wrong_with_it_is_said_in_one_line_and_mended_without_a_restart(
        self, tmp_path, code, message
    ):
        file = tmp_path / "bad.py"
        file.write_text(code)
        with pytest.raises(UserCodeError, match=message) as caught:
            import_user_file(file)
        assert "\n" not in str(caught.value)
        file.write_text("MENDED = True\n")
        assert import_user_file(file).MENDED

    def test_what_is_no_python_file_is_refused(self, tmp_path):
        with pytest.raises(UserCodeError, match=r"there is no file '.*absent\.py'"):
            import_user_file(tmp_path / "absent.py")
        with pytest.raises(UserCodeError, match="is not a Python file"):
            import_user_file(tmp_path)
