"""Options: types, precedence, the printed table, and what is refused."""

import dataclasses
import datetime
import re
from pathlib import Path

import pytest
import torch

from chop.actions import config as config_module
from chop.actions.config import OPTIONS, ConfigError, HelpPanel, RunConfig
from chop.actions.resolve import resolve
from chop.ir import MaseGraph
from chop.passes import Pipeline
from chop.tools.config_load import load_config

ROOT = Path(__file__).parents[2]
NAMES = {"model": "jsc-tiny", "dataset": "jsc"}
# the rows of the labs' table, in their order, less those of hardware generation
LAB_ROWS = re.findall(
    r"\w+",
    """
    task load_name load_type batch_size to_debug log_level report_to seed quant_config
    training_optimizer trainer_precision learning_rate weight_decay max_epochs max_steps
    accumulate_grad_batches log_every_n_steps num_workers num_devices num_nodes accelerator
    strategy is_to_auto_requeue disable_dataset_cache is_pretrained max_token_len project_dir
    project model dataset
    """,
)


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch):
    """The defaults that depend on the machine, fixed."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    factory = OPTIONS["project_dir"].field
    monkeypatch.setattr(factory, "default_factory", lambda: Path("/home/user1/mase_output"))


@pytest.fixture
def toml(tmp_path):
    """Writes `run.toml`, and gives its path as the command line does."""

    def write(text):
        (tmp_path / "run.toml").write_text(text, encoding="utf-8")
        return str(tmp_path / "run.toml")

    return write


def refusal(flags):
    with pytest.raises(ConfigError) as refused:
        resolve(flags)
    return str(refused.value)


# ------------------------------------------------------------------ what there is


def test_every_option_says_what_it_is_for_and_has_a_place_in_the_help():
    groups = [value for name, value in vars(HelpPanel).items() if name.isupper()]
    for option in OPTIONS.values():
        assert option.opt.help.endswith("."), option.name
        assert option.opt.group in groups


def test_no_flag_belongs_to_two_options():
    flags = [flag for option in OPTIONS.values() for flag in option.flags]
    assert len(flags) == len(set(flags))


def test_every_default_is_a_value_that_the_option_itself_accepts():
    for option in OPTIONS.values():
        if option.default not in (None, ()):
            value = str(option.default) if isinstance(option.default, Path) else option.default
            assert option.from_file(value) == option.default


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1  # type: ignore[misc]


def test_tasks_have_short_forms():
    short = {"cls": "classification", "lm": "language_modeling", "tran": "translation"}
    for task, in_full in (short | {"classification": "classification"}).items():
        assert RunConfig(task=task).task_in_full == in_full


# ------------------------------------------------------------------ precedence


@pytest.mark.parametrize(
    ("in_file", "flag", "effective"),
    [(None, None, 20), (5, None, 5), (None, "7", 7), (5, "7", 7), (5, "20", 20)],
)
def test_default_is_less_than_file_is_less_than_command_line(toml, in_file, flag, effective):
    flags = dict(NAMES)
    if in_file is not None:
        flags["config"] = toml(f"max_epochs = {in_file}")
    if flag is not None:
        flags["max_epochs"] = flag
    assert resolve(flags).config.max_epochs == effective


def test_model_and_dataset_may_come_from_the_file(toml):
    path = toml('model = "jsc-s"\ndataset = "jsc"')
    config = resolve({"config": path, "dataset": "mnist"}).config
    assert (config.model, config.dataset) == ("jsc-s", "mnist")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('max_steps = "NA"', "max_steps", None),
        ('project = "NA"', "project", None),
        ("trainer_precision = 32", "trainer_precision", "32"),
        ("learning_rate = 1", "learning_rate", 1.0),
    ],
)
def test_a_value_of_the_file_may_be_na_or_a_number_for_a_choice(toml, text, name, value):
    assert getattr(resolve({**NAMES, "config": toml(text)}).config, name) == value


def test_no_limit_on_steps_is_minus_one():
    assert resolve({**NAMES, "max_steps": "-1"}).config.max_steps == -1


def test_tables_are_handed_on_as_they_are(toml):
    text = """
    [passes.quantize]
    by = "type"
    [passes.quantize.default.config]
    name = "NA"
    [search.strategy]
    name = "optuna"
    [transform]
    style = "graph"
    [model_args]
    widths = [16, 8]
    [dataset_args]
    fold = 3
    since = 2024-01-01
    limit = inf
    [cf_args]
    causal = true
    """
    config = resolve({**NAMES, "config": toml(text)}).config
    assert config.passes == {"quantize": {"by": "type", "default": {"config": {"name": None}}}}
    assert config.search == {"strategy": {"name": "optuna"}}
    since = datetime.date(2024, 1, 1)
    assert config.dataset_args == {"fold": 3, "since": since, "limit": float("inf")}
    tables = (config.transform, config.model_args, config.cf_args)
    assert tables == ({"style": "graph"}, {"widths": [16, 8]}, {"causal": True})


# ------------------------------------------------------------------ paths


def test_paths_become_absolute_but_not_names_on_hugging_face(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.ckpt").touch()
    config = resolve({**NAMES, "load_name": "best.ckpt", "project_dir": "out"}).config
    assert config.load_name == str(tmp_path / "best.ckpt")
    assert config.project_dir == tmp_path / "out"
    config = resolve({**NAMES, "load_name": "facebook/opt-125m", "load_type": "hf"}).config
    assert config.load_name == "facebook/opt-125m"


def test_what_a_file_names_may_lie_beside_it(toml, tmp_path):
    (tmp_path / "mine.py").touch()
    config = resolve({**NAMES, "config": toml('imports = ["mine.py"]')}).config
    assert config.imports == (tmp_path / "mine.py",)


def test_the_present_folder_comes_first(toml, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "data.csv").touch()
    (tmp_path / "here" / "data.csv").touch()
    config = resolve({**NAMES, "config": toml('data_path = "data.csv"')}).config
    assert config.data_path == tmp_path / "here" / "data.csv"


def test_a_stale_path_in_the_file_does_no_harm_once_it_is_overridden(toml, tmp_path):
    (tmp_path / "new.ckpt").touch()
    flags = {"config": toml('load_name = "gone.ckpt"'), "load_name": str(tmp_path / "new.ckpt")}
    assert resolve({**NAMES, **flags}).config.load_name == str(tmp_path / "new.ckpt")


def test_runs_go_to_the_clone_or_to_the_present_folder(tmp_path, monkeypatch):
    assert config_module.default_project_dir() == ROOT / "mase_output"
    (tmp_path / "site-packages" / "chop").mkdir(parents=True)
    monkeypatch.setattr("chop.__file__", str(tmp_path / "site-packages" / "chop" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert config_module.default_project_dir() == tmp_path / "mase_output"


def test_a_checkpoint_of_a_run_is_found_from_any_folder(tmp_path, monkeypatch):
    saved = tmp_path / "mase_output" / "first" / "best.ckpt"
    saved.parent.mkdir(parents=True)
    saved.touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    flags = {
        "project_dir": str(tmp_path / "mase_output"),
        "load_name": "mase_output/first/best.ckpt",
    }
    assert resolve({**NAMES, **flags}).config.load_name == str(saved)
    here = tmp_path / "elsewhere" / "mase_output" / "first" / "best.ckpt"
    here.parent.mkdir(parents=True)
    here.touch()
    assert resolve({**NAMES, **flags}).config.load_name == str(here)  # that of the folder is first
    with pytest.raises(ConfigError, match="mase_output/second"):
        resolve({**NAMES, **flags, "load_name": "mase_output/second/best.ckpt"})


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("batch_size", "0", "--batch-size: should be greater than or equal to 1, not '0'"),
        ("batch_size", "x", "--batch-size: should be a valid integer, not 'x'"),
        ("batch_size", "1.5", "--batch-size: should be a valid integer, not '1.5'"),
        ("batch_size", "", "--batch-size: should be a valid integer, not ''"),
        ("learning_rate", "-1", "--learning-rate: should be greater than 0, not '-1'"),
        ("learning_rate", "nan", "--learning-rate: should be a finite number, not 'nan'"),
        ("learning_rate", "inf", "--learning-rate: should be a finite number, not 'inf'"),
        ("weight_decay", "-0.1", "--weight-decay: should be greater than or equal to 0, not '-0.1'"),  # noqa: E501
        ("max_epochs", "0", "--max-epochs: should be greater than or equal to 1, not '0'"),
        ("max_steps", "-2", "--max-steps: should be greater than or equal to -1, not '-2'"),
        ("num_workers", "-1", "--cpu: should be greater than or equal to 0, not '-1'"),
        ("num_devices", "0", "--gpu: should be greater than or equal to 1, not '0'"),
        ("seed", "-1", "--seed: should be greater than or equal to 0, not '-1'"),
        ("seed", "4294967296", "--seed: should be less than or equal to 4294967295, not '4294967296'"),  # noqa: E501
        ("gradient_clip", "-1", "--gradient-clip: should be greater than 0, not '-1'"),
        ("early_stopping", "0", "--early-stopping: should be greater than or equal to 1, not '0'"),
        ("schedule", "cosin", "--schedule: should be 'cosine', 'constant' or 'linear', not 'cosin'; did you mean 'cosine'?"),  # noqa: E501
        ("load_type", "zip", "--load-type: should be 'pt', 'pl', 'mz' or 'hf', not 'zip'"),
        ("load_name", "/gone", "--load: there is no file or folder '/gone'"),
        ("data_path", "/gone", "--data-path: there is no file or folder '/gone'"),
        ("quant_config", "/gone", "--quant-config: there is no file or folder '/gone'"),
        ("imports", ["/gone.py"], "--import: there is no file or folder '/gone.py'"),
        ("config", "/gone.toml", "--config: there is no file '/gone.toml'"),
        ("config", "run.yaml", "expected .toml configuration file, got run.yaml"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_refused_in_one_sentence(name, value, sentence):
    assert refusal({**NAMES, name: value}) == sentence


def test_a_missing_checkpoint_is_looked_for_among_projects_and_trials(tmp_path):
    (tmp_path / "mine").mkdir()
    flags = {**NAMES, "project_dir": str(tmp_path)}
    said = refusal(flags | {"load_name": "mine"})
    assert said.endswith(f"; did you mean {str(tmp_path / 'mine')!r}?")
    trial = tmp_path / "mine" / "software" / "search_ckpts" / "trial_4"
    assert refusal(flags | {"load_name": str(trial)}).endswith(
        "; build it with ch search --apply 4"
    )


def test_a_saved_graph_names_the_model_and_the_data_set_to_give(tmp_path):
    graph = MaseGraph(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    graph.meta["made_from"] = NAMES
    graph, _ = Pipeline(["init_metadata"])(graph)
    graph.export(tmp_path / "saved")
    said = refusal({"load_name": str(tmp_path / "saved")})
    assert said.endswith(
        "give jsc-tiny jsc after the command, from which the graph of --load was made"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch_size = 0", "batch_size: should be greater than or equal to 1, not 0"),
        ('batch_size = "64"', "batch_size: should be a valid integer, not '64'"),
        ("batch_size = 64.0", "batch_size: should be a valid integer, not 64.0"),
        ("batch_size = true", "batch_size: should be a valid integer, not True"),
        ('batch_size = "NA"', "batch_size: should be a valid integer, not None"),
        ("learning_rate = nan", "learning_rate: should be a finite number, not nan"),
        ("seed = 2024-01-01", "seed: should be a valid integer, not datetime.date(2024, 1, 1)"),
        ('to_debug = "yes"', "to_debug: should be a valid boolean, not 'yes'"),
        ("load_name = 3", "load_name: should be a valid string, not 3"),
        ("passes = 3", "passes: should be an object, not 3"),
        ('task = "clas"', "task: should be 'classification', 'cls', 'regression', 'reg', 'dense', 'translation', 'tran', 'language_modeling' or 'lm', not 'clas'; did you mean 'cls'?"),  # noqa: E501
        ('load_name = "/gone"', "load_name: there is no file or folder '/gone'"),
        ("lerning_rate = 1", "unknown key 'lerning_rate'; did you mean 'learning_rate'?"),
        ("load = 'a.ckpt'", "unknown key 'load'; did you mean 'load_name'?"),
        ("max-epochs = 2", "unknown key 'max-epochs'; did you mean 'max_epochs'?"),
        ("[pases.quantize]", "unknown key 'pases'; did you mean 'passes'?"),
        ("optimiser = 'sgd'", "unknown key 'optimiser'; did you mean 'optimizer'?"),
        ("optimizer = 'sgd'\ntraining_optimizer = 'adam'", "'optimizer' and 'training_optimizer' are the same option; omit one of them"),  # noqa: E501
        ("zzz = 1", "unknown key 'zzz'; docs/command_line.md lists the keys"),
        ('config = "a.toml"', "a configuration file cannot name another in 'config'"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_refused_with_its_file_and_name(toml, text, sentence):
    path = toml(text)
    assert refusal({**NAMES, "config": path}) == f"{path}: {sentence}"


def test_options_of_training_have_the_names_of_other_tables_as_well(toml):
    text = "optimizer = 'sgd'\nlr_scheduler = 'linear'\nnum_warmup_steps = 3\nprecision = 32\n"
    config = resolve({**NAMES, "config": toml(text + "gradient_clip_val = 0.5")}).config
    assert (config.training_optimizer, config.schedule, config.warmup_steps) == ("sgd", "linear", 3)
    assert (config.trainer_precision, config.gradient_clip) == ("32", 0.5)


def test_a_file_that_is_no_toml_is_refused_with_the_line(toml):
    path = toml("seed = 1\nbatch_size 3\n")
    message = refusal({**NAMES, "config": path})
    assert message.startswith(f"{path} is not valid TOML: ")
    assert "line 2" in message


def test_all_that_is_wrong_is_said_at_once(toml):
    path = toml("seed = -1\nbatch_size = 0\nzzz = 1")
    lines = refusal({**NAMES, "config": path, "max_epochs": "0"}).splitlines()
    assert lines[0] == "4 problems:"
    places = [line.split(":")[-2].strip() for line in lines[1:]]
    assert places == ["--max-epochs", path, "seed", "batch_size"]


@pytest.mark.parametrize("given", ["net.py", "net.py:Net"])
def test_a_python_file_in_place_of_a_model_is_refused_with_what_to_give(given):
    message = refusal({**NAMES, "model": given})
    assert message == (
        f"MODEL: {given} is a Python file; give it with --import, and as MODEL the name that its "
        f"@model(…) registers"
    )


def test_a_python_file_holds_no_weights(tmp_path):
    file = tmp_path / "net.py"
    file.touch()
    message = refusal({**NAMES, "load_name": str(file)})
    assert message.startswith(f"--load: {file} is a Python file, which holds no weights; give it")


def test_a_model_and_a_dataset_are_required():
    both, model, dataset = {}, {"model": "jsc-tiny"}, {"dataset": "jsc"}
    missing = {"a model and a data set are": both, "a data set is": model, "a model is": dataset}
    for what, flags in missing.items():
        assert refusal(flags) == (
            f"{what} required; give MODEL and DATASET after the command, or set model and dataset "
            f"in the file of --config"
        )


# ------------------------------------------------------------------ the table


def rows(table):
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]


def test_the_table_has_the_rows_of_the_labs_in_their_order():
    assert [name for name in rows(resolve(NAMES).table()) if name] == LAB_ROWS


def test_other_options_have_a_row_once_they_are_given(toml):
    path = toml("warmup_steps = 5\n[model_args]\nwidths = [3]")
    table = resolve({**NAMES, "config": path, "schedule": "linear", "resume": True}).table()
    more = [name for name in rows(table) if name and name not in LAB_ROWS]
    assert more == ["resume", "schedule", "warmup_steps", "model_args"]


def test_the_table_with_and_without_a_file(golden, toml):
    golden("table_without_file.txt", resolve({**NAMES, "max_epochs": "10"}).table() + "\n")
    path = toml("batch_size = 256\nlearning_rate = 0.01\nmax_epochs = 5\nseed = 42")
    golden("table.txt", resolve({**NAMES, "config": path, "batch_size": "512"}).table() + "\n")


SEEN_IN_THE_LABS = """\
+-------------------------+-------------------------+--------------+-----------------+-------------------------+
| Name                    |         Default         | Config. File | Manual Override |        Effective        |
+-------------------------+-------------------------+--------------+-----------------+-------------------------+
| task                    |     classification      |              |                 |     classification      |
| batch_size              |           128           |     256      |       512       |           512           |
| learning_rate           |          1e-05          |     0.01     |                 |          0.01           |
"""  # noqa: E501


def test_lines_of_the_table_that_were_seen_in_the_labs(toml):
    path = toml("batch_size = 256\nlearning_rate = 0.01")
    table = resolve({**NAMES, "config": path, "batch_size": "512"}).table()
    assert set(SEEN_IN_THE_LABS.splitlines()) <= set(table.splitlines())


def test_what_lost_is_gray_where_there_are_colours(toml, monkeypatch):
    resolved = resolve({**NAMES, "config": toml("batch_size = 256\nseed = 9"), "batch_size": "512"})
    plain = resolved.table()
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = resolved.table()
    for gray in ("128", "256", "0"):
        assert f"\033[38;5;8m{gray}\033[0m" in coloured
    assert "\033[38;5;8m512" not in coloured
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert resolved.table() == plain


# ------------------------------------------------------------------ files and pages


@pytest.mark.parametrize("file", sorted((ROOT / "configs").rglob("*.toml")), ids=lambda f: f.name)
def test_every_example_is_a_valid_configuration(file):
    allowed = {"load_name"} & load_config(file).keys()  # what an earlier run makes
    flags = {"config": str(file), **dict.fromkeys(allowed, str(file))}
    config = resolve(flags).config
    assert config.model
    assert config.dataset


def documented():
    lines = []
    for group in [value for name, value in vars(HelpPanel).items() if name.isupper()]:
        lines += [f"### {group}", "", "| flag | key | values | default | meaning |"]
        lines += ["|---|---|---|---|---|"]
        lines += [described(option) for option in OPTIONS.values() if option.opt.group == group]
        lines += [""]
    return "\n".join(lines)


def described(option):
    flags = " ".join(f"`{flag}`" for flag in option.flags)
    key = f"`{option.name}`" if option.name != "config" else ""
    default = f"`{option.shown_default}`" if option.shown_default else ""
    return f"| {flags} | {key} | {option.values} | {default} | {option.opt.help} |"


def test_the_page_of_the_command_line_lists_every_option(pytestconfig):
    page = ROOT / "docs" / "command_line.md"
    start = "<!-- options: made by tests/actions/test_config.py -->\n"
    end = "<!-- end of options -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    listed, _, after = rest.partition(end)
    if pytestconfig.getoption("--update-golden"):
        listed = documented()
        page.write_text(before + start + listed + end + after, encoding="utf-8")
    assert listed == documented(), "pytest --update-golden writes the page anew"
