"""`ch transform` and `ch search` with calibrated numbers."""

from __future__ import annotations

import json
import logging

import pytest

from chop.actions.config import ConfigError
from chop.actions.transform import plan_of
from chop.ir.graph.mase_metadata import mase
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized

from .search.conftest import HEAD, METRICS, SPACE, STRATEGY


def config(width=6, **more):
    about = {"name": "integer", **more}
    for operand in ("data_in", "weight", "bias"):
        about |= {f"{operand}_width": width, f"{operand}_frac_width": "calibrated"}
    return about


def quantize(width=6, **more):
    return {"by": "type", "linear": {"config": config(width, **more)}}


def layer_of(graph):
    return next(m for m in graph.model.modules() if isinstance(m, Quantized))


def rows_of(folder):
    return json.loads((folder / "transform.json").read_text())


class TestTransform:
    def test_calibrate_runs_by_itself_and_is_announced(self, transformed, tmp_path, caplog):
        with caplog.at_level(logging.INFO, logger="chop"):
            graph = transformed({"passes": {"quantize": quantize()}})
        assert "passes.quantize asks for calibrated numbers: running calibrate" in caplog.text
        written = rows_of(tmp_path / "transform")
        assert [row["Pass"] for row in written["passes"]] == ["calibrate", "quantize"]
        assert {"calibration.svg", "quantize/calibration.svg"} <= set(written["files"])
        assert isinstance(layer_of(graph).config["data_in_frac_width"], int)

    @pytest.mark.slow
    def test_a_calibrate_of_the_file_is_the_only_one(self, transformed, tmp_path, caplog):
        passes = {"calibrate": {"method": "minmax", "num_samples": 96}, "quantize": quantize(5)}
        with caplog.at_level(logging.INFO, logger="chop"):
            graph = transformed({"passes": passes})
        assert "asks for calibrated numbers" not in caplog.text
        assert [row["Pass"] for row in rows_of(tmp_path / "transform")["passes"]] == list(passes)
        node = next(n for n in graph.nodes if mase(n).common.mase_op == "linear")
        entry = mase(node).software.args["data_in_0"]["calibration"]
        assert entry["method"] == "minmax"
        assert "5 bits" in (tmp_path / "transform" / "calibration.svg").read_text()

    def test_a_calibrate_after_the_quantisation_is_reported_before_anything_runs(self):
        with pytest.raises(ConfigError) as caught:
            plan_of({"passes": {"quantize": quantize(), "calibrate": {}}}, None)
        assert str(caught.value) == (
            "passes.calibrate: calibrate needs a float graph, but passes.quantize comes before it; "
            "calibrate first, then quantise"
        )

    @pytest.mark.parametrize("name", ["calibrate", "correct_bias"])
    def test_a_file_cannot_hold_a_generator(self, name):
        with pytest.raises(ConfigError, match=rf"passes.{name}.input_generator: .*; leave it out"):
            plan_of({"passes": {name: {"input_generator": "train"}}}, None)

    @pytest.mark.slow
    def test_a_calibrated_graph_is_not_calibrated_again(self, transformed, tmp_path):
        transformed({"passes": {"calibrate": {"method": "mse"}}})
        saved = (tmp_path / "transform" / "transformed_ckpt").rename(tmp_path / "saved")
        transformed({"passes": {"quantize": quantize()}}, load_name=str(saved), load_type="mz")
        assert [row["Pass"] for row in rows_of(tmp_path / "transform")["passes"]] == ["quantize"]

    @pytest.mark.slow
    def test_affine_activations_without_a_scale_need_it_too(self, transformed, tmp_path):
        about = {"name": "affine", "data_in_width": 8, "weight_width": 8}
        graph = transformed({"passes": {"quantize": {"by": "type", "linear": {"config": about}}}})
        names = [row["Pass"] for row in rows_of(tmp_path / "transform")["passes"]]
        assert names == ["calibrate", "quantize"]
        assert layer_of(graph).data_in_scale.item() > 0

    @pytest.mark.slow
    def test_numbers_need_none(self, transformed, tmp_path):
        numbers = {k: 3 if v == "calibrated" else v for k, v in config().items()}
        transformed({"passes": {"quantize": {"by": "type", "linear": {"config": numbers}}}})
        assert [row["Pass"] for row in rows_of(tmp_path / "transform")["passes"]] == ["quantize"]

    def test_activations_of_a_model_without_a_graph_are_refused(self, transformed):
        tables = {"transform": {"style": "module"}, "passes": {"quantize": quantize()}}
        with pytest.raises(ConfigError, match="'calibrated', which needs a graph; give a number"):
            transformed(tables)


def calibrated_space(*more):
    """The tables of a search with calibrated fractions, or 3 for the input."""
    text = SPACE.replace('data_in_frac_width = ["NA"]', 'data_in_frac_width = ["calibrated", 3]')
    text = text.replace('["NA"]', '["calibrated"]').replace(
        'default.config]\nname = ["calibrated"]', 'default.config]\nname = ["NA"]'
    )
    return "\n".join([text, *more])


def search_file(tmp_path, *more, n_trials=6):
    file = tmp_path / "search.toml"
    setup = f"[search.strategy.setup]\nn_trials = {n_trials}\nsampler = 'random'\n"
    tolerant = STRATEGY.replace("num_samples = 64", "num_samples = 64\nallow_untrained = true")
    file.write_text(HEAD + calibrated_space(*more) + tolerant + METRICS + setup)
    return file


def trials_of(tmp_path, project="p"):
    log = tmp_path / "out" / project / "software" / "search_ckpts" / "log.json"
    return json.loads(log.read_text())


class TestSearch:
    def test_designs_have_numbers_and_the_parent_is_calibrated_once(self, ch, tmp_path):
        said = ch("search", "--config", search_file(tmp_path), "--no-progress")
        assert said.stderr.count("calibrating the parent once") == 1
        configs = [
            table["config"]
            for trial in trials_of(tmp_path).values()
            for table in trial["user_attrs_sampled_config"].values()
            if isinstance(table, dict) and (table.get("config") or {}).get("name") == "integer"
        ]
        assert configs
        for table in configs:
            assert all(isinstance(table[f"{o}_frac_width"], int) for o in ("data_in", "weight"))
        applied = ch("search", "--config", search_file(tmp_path), "--apply", "best")
        assert "calibrating the parent" not in applied.stderr

    @pytest.mark.slow
    def test_workers_resuming_and_applying_agree(self, ch, tmp_path):
        file = search_file(tmp_path)
        ch("search", "--config", file, "--no-progress", "--project", "one")
        two = ("--config", file, "--no-progress", "--project", "two", "--workers", "2")
        ch("search", *two)
        one = trials_of(tmp_path, "one")
        other = trials_of(tmp_path, "two")
        keys = ("user_attrs_sampled_config", "user_attrs_software_metrics")
        for number, trial in one.items():
            assert [trial[key] for key in keys] == [other[number][key] for key in keys]
        ch("search", "--config", search_file(tmp_path, n_trials=9), "--project", "one", "--resume")
        assert len(trials_of(tmp_path, "one")) == 9
        applied = ch("search", "--config", file, "--project", "one", "--apply", "best")
        assert "Saved the design to" in applied.stderr

    @pytest.mark.slow
    def test_a_study_records_how_it_was_calibrated(self, ch, tmp_path):
        ch("search", "--config", search_file(tmp_path), "--no-progress")
        other = search_file(
            tmp_path, "[search.search_space.calibrate]\nmethod = 'minmax'", n_trials=9
        )
        refused = ch("search", "--config", other, "--no-progress", "--resume", check=2)
        assert "its calibration.method is output, not minmax" in refused.stderr

    @pytest.mark.slow
    def test_options_of_calibrate_are_checked(self, ch, tmp_path):
        wrong = search_file(tmp_path, "[search.search_space.calibrate]\nmethod = 'median'")
        refused = ch("search", "--config", wrong, "--no-progress", check=2)
        assert "median" in refused.stderr

    @pytest.mark.slow
    def test_populations_train_calibrated_designs(self, ch, tmp_path):
        file = search_file(tmp_path, n_trials=4)
        text = file.read_text().replace(
            "[search.strategy.sw_runner.basic_evaluation]",
            "[search.strategy.sw_runner.population_train]\npopulation = 2\nmax_steps = 4\n"
            "[search.strategy.sw_runner.basic_evaluation]",
        )
        file.write_text(text)
        ch("search", "--config", file, "--no-progress")
        assert len(trials_of(tmp_path)) == 4
