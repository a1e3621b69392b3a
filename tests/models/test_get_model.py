"""`get_model` in both its shapes, and what it refuses before it builds."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chop.dataset import MaseDatasetInfo
from chop.models import MODELS, ModelTaskType, get_model, get_model_info, get_tokenizer
from chop.models.base import model, register_mase_model
from chop.models.physical import JSC_Tiny


@dataclass
class Box:
    width: int


class TestCallShapes:
    def test_the_labs_call_by_name_and_task(self, jets):
        built = get_model("jsc-tiny", task="cls", dataset_info=jets, pretrained=False)
        assert isinstance(built, JSC_Tiny)
        assert isinstance(get_model("jsc-tiny", "classification", jets, False), JSC_Tiny)

    def test_later_labs_call_the_name_checkpoint(self, jets):
        checkpoint = "jsc-tiny"
        assert isinstance(get_model(checkpoint, pretrained=False, dataset_info=jets), JSC_Tiny)
        assert isinstance(get_model(checkpoint=checkpoint, dataset_info=jets), JSC_Tiny)

    def test_a_builder_that_asks_for_no_data_set_needs_none(self):
        @register_mase_model("fixed", model_source="nerf", task_type="nerf")
        def fixed():
            return nn.Identity()

        with pytest.raises(ValueError, match="model 'fixed' supports no task, not cls"):
            get_model("fixed")
        assert isinstance(MODELS["fixed"].make(None, pretrained=False, options={}), nn.Identity)


class TestRefusals:
    @pytest.mark.parametrize("error", [KeyError, ValueError])
    def test_an_unknown_name_is_told_with_the_nearest(self, error, jets):
        with pytest.raises(error, match="unknown model 'jsc_tiny'; did you mean 'jsc-tiny'"):
            get_model("jsc_tiny", dataset_info=jets)
        with pytest.raises(error, match="unknown model 'resnet19'"):
            get_model_info("resnet19")
        with pytest.raises(error, match="unknown model None"):
            get_model(dataset_info=jets)

    def test_a_model_of_ones_own_is_told_how_to_take_images(self, pictures):
        model("rows-own")(lambda info: nn.Identity())
        try:
            with pytest.raises(
                ValueError, match=r"register it with @model\(…, task_type=.vision.\)"
            ):
                get_model("rows-own", dataset_info=pictures)
        finally:
            MODELS._items.pop("rows-own")

    def test_data_that_does_not_fit(self, jets, pictures):
        said = r"'jsc-tiny' takes rows of features \(num_features\), but data set 'cifar10' has "
        with pytest.raises(ValueError, match=f"{said}images of 3 x 32 x 32"):
            get_model("jsc-tiny", dataset_info=pictures)
        with pytest.raises(ValueError, match=r"'vgg7' takes images .*'jsc' has 16 features"):
            get_model("vgg7", dataset_info=jets)
        with pytest.raises(ValueError, match="needs num_classes, but data set 'raw' has none"):
            get_model("jsc-s", dataset_info=MaseDatasetInfo(name="raw", num_features=16))
        for nothing in (None, {"num_features": 16}):
            with pytest.raises(TypeError, match="'jsc-s' needs dataset_info, such as"):
                get_model("jsc-s", dataset_info=nothing)

    @pytest.mark.parametrize(
        ("name", "image_size", "message"),
        [
            ("cnv", (1, 28, 28), "'p' are 28 x 28 pixels, but this network needs 32 x 32 or more"),
            ("vgg7", (1, 2, 2), "needs 8 x 8 or more"),
            ("deit_tiny_patch16_224", (3, 28, 28), "28 x 28 .* multiple of the 16 x 16 patches"),
            ("resnet18", (28, 28), r"must be \(channels, height, width\), but data set 'p' has"),
            ("toy_convnet", (1, 1, 1), "needs 2 x 2 or more"),
        ],
    )
    def test_images_of_a_size_that_a_network_cannot_take(self, name, image_size, message):
        info = MaseDatasetInfo(name="p", image_size=image_size, num_classes=2)
        with pytest.raises(ValueError, match=message):
            get_model(name, dataset_info=info)

    def test_a_task_that_the_model_cannot_do(self, jets):
        with pytest.raises(ValueError, match="model 'jsc-tiny' supports cls, not lm"):
            get_model("jsc-tiny", task="lm", dataset_info=jets)
        with pytest.raises(ValueError, match="unknown task 'clss'; did you mean 'cls'"):
            get_model("jsc-tiny", task="clss", dataset_info=jets)

    def test_options_that_the_model_has_not(self, jets):
        with pytest.raises(
            ValueError, match=r"'jsc-tiny' has no option 'depth'; it has no options"
        ):
            get_model("jsc-tiny", dataset_info=jets, depth=3)
        with pytest.raises(ValueError, match=r"'mlp' has no option 'width' \(options: hidden"):
            get_model("mlp", dataset_info=jets, width=3)
        with pytest.raises(ValueError, match="has no option 'quant_config'"):
            get_model("jsc-tiny", dataset_info=jets, quant_config={"default": {}})

    def test_options_from_toml_become_what_the_builder_declares(self, jets):
        @model("typed")
        def typed(info, *, sizes: tuple[int, int], file: Path, kind: ModelTaskType, box: Box):
            assert (sizes, file, kind) == ((1, 2), Path("a.pt"), ModelTaskType.NLP)
            assert box == Box(3)
            return nn.Identity()

        options = {"sizes": [1, 2], "file": "a.pt", "kind": "nlp", "box": {"width": 3}}
        assert get_model("typed", dataset_info=jets, **options)
        with pytest.raises(ValueError, match=r"'sizes' is \[1\], .* sizes: tuple\[int, int\]"):
            get_model("typed", dataset_info=jets, **{**options, "sizes": [1]})
        with pytest.raises(ValueError, match=r"model 'typed': option 'box' is Ident.* box: Box"):
            get_model("typed", dataset_info=jets, **{**options, "box": nn.Identity()})

    def test_options_without_a_readable_type_are_left_to_the_builder(self, jets):
        @model("free")
        def free(info, *, width, layer: "nn.Module", kind: "Unheard" = None):  # noqa: F821
            return layer

        layer = nn.Identity()
        assert get_model("free", dataset_info=jets, width="w", layer=layer, kind=1) is layer

    def test_weights_that_nobody_has(self, jets):
        said = "no published weights for model 'jsc-s'; load your own with `checkpoint`"
        with pytest.raises(ValueError, match=said):
            get_model("jsc-s", dataset_info=jets, pretrained=True)

    def test_tokenizers_are_for_language_models(self):
        said = "'vgg7' has no tokenizer, as its data are of type vision"
        with pytest.raises(ValueError, match=said):
            get_tokenizer("vgg7")

    def test_a_tokenizer_names_the_package_that_it_needs(self, monkeypatch):
        @register_mase_model("gpt", model_source="manual", task_type="nlp", causal_LM=True)
        def gpt(info):
            return nn.Identity()

        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(ImportError, match=r'pip install -c constraints.txt -e "\.\[hf\]"'):
            get_tokenizer("gpt")


class TestCheckpoints:
    def test_safetensors_are_read_too(self, jets, tmp_path):
        built = get_model("jsc-toy", dataset_info=jets)
        save_file(built.state_dict(), tmp_path / "toy.safetensors")
        again = get_model("jsc-toy", dataset_info=jets, checkpoint=tmp_path / "toy.safetensors")
        for key, tensor in built.state_dict().items():
            assert torch.equal(again.state_dict()[key], tensor)

    def test_pretrained_beside_a_file_is_ignored_aloud(self, jets, tmp_path, caplog):
        torch.save(get_model("jsc-tiny", dataset_info=jets).state_dict(), tmp_path / "a.pt")
        with caplog.at_level("WARNING", logger="chop"):
            get_model("jsc-tiny", "cls", jets, pretrained=True, checkpoint=tmp_path / "a.pt")
        assert "pretrained is ignored" in caplog.text

    def test_weights_of_another_model_are_refused(self, jets, tmp_path):
        torch.save(get_model("jsc-tiny", dataset_info=jets).state_dict(), tmp_path / "tiny.pt")
        with pytest.raises(ValueError, match=r"tiny\.pt does not fit"):
            get_model("jsc-toy", dataset_info=jets, checkpoint=tmp_path / "tiny.pt")


class TestNamedInputs:
    """Data with named inputs have no `num_features` and no `image_size`."""

    INFO = MaseDatasetInfo(
        name="npz", task="cls", num_classes=3, input_shapes={"tok": (7,), "num": (3,)}
    )
    BUILDERS: ClassVar[dict] = {
        "attribute": (lambda info: nn.Linear(info.num_features, 4), "num_features"),
        "key": (lambda info: nn.BatchNorm1d(info["num_features"]), "num_features"),
        "arithmetic": (lambda info: nn.Linear(2 * info.num_features, 4), "num_features"),
        "images": (lambda info: nn.Conv2d(info.image_size[0], 4, 3), "image_size"),
    }

    @pytest.mark.parametrize("build", BUILDERS)
    def test_a_builder_that_needs_one_of_them_gets_one_sentence(self, build):
        function, fact = self.BUILDERS[build]
        model("my-mlp")(function)
        with pytest.raises(ValueError, match=r"^data set 'npz' has the inputs tok, num and") as got:
            get_model("my-mlp", dataset_info=self.INFO)
        assert f"no {fact}, which model 'my-mlp' uses; build the model from" in str(got.value)

    @pytest.mark.parametrize("name", ["mlp", "jsc-tiny", "resnet18", "vit_tiny_patch4_32"])
    def test_our_models_for_one_input_say_what_they_lack(self, name):
        info = replace(self.INFO, input_shapes={"ids": (7,)})
        with pytest.raises(ValueError, match=r"has the input ids and no .*, which model"):
            get_model(name, dataset_info=info)

    def test_another_error_of_a_builder_stays_as_it_is(self):
        def build(info):
            return nn.Linear(info.num_features or 3, "4")

        model("my-mlp")(build)
        with pytest.raises(TypeError, match="str"):
            get_model("my-mlp", dataset_info=self.INFO)

    def test_a_builder_that_uses_the_shapes_serves(self):
        model("my-mlp")(lambda info: nn.Linear(info.input_shapes["num"][0], info.num_classes))
        assert get_model("my-mlp", dataset_info=self.INFO).in_features == 3
