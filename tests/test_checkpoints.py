"""Weights are read from every kind of file, and no file runs code."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chop.checkpoints import checkpoint_at, load_graph, load_model, network_at
from chop.ir import MaseGraph
from chop.project_networks import note_design


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


def saved(content, file):
    torch.save(content, file)
    return file


def write_pt(model, folder):
    return saved(state(model), folder / "model.pt")


def write_nested_pt(model, folder):
    return saved({"state_dict": state(model), "epoch": 3}, folder / "model.pt")


def write_published_pt(model, folder):
    return saved({"model": state(model)}, folder / "model.pth")


def write_safetensors(model, folder):
    save_file(state(model), folder / "model.safetensors")
    return folder / "model.safetensors"


def write_pl(model, folder):
    wrapped = {f"model.{k}": v for k, v in state(model).items()} | {"loss_val.total": torch.ones(1)}
    return saved({"state_dict": wrapped, "hyper_parameters": {"lr": 1}}, folder / "best.ckpt")


def write_hf(model, folder):
    write_safetensors(model, folder)
    return folder


def write_sharded_hf(model, folder):
    weight_map = {}
    for i, (name, value) in enumerate(state(model).items()):
        shard = f"model-{i}.safetensors"
        save_file({name: value}, folder / shard)
        weight_map[name] = shard
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def write_mz(model, folder):
    save_file(state(model), folder / "state_dict.safetensors")
    return folder


WRITERS = [
    (write_pt, "pt", "Loaded pytorch checkpoint from"),
    (write_nested_pt, "pt", "Loaded pytorch checkpoint from"),
    (write_published_pt, "pt", "Loaded pytorch checkpoint from"),
    (write_safetensors, "pt", "Loaded pytorch checkpoint from"),
    (write_pl, "pl", "Loaded pytorch lightning checkpoint from"),
    (write_hf, "hf", "Loaded Hugging Face checkpoint from"),
    (write_sharded_hf, "hf", "Loaded Hugging Face checkpoint from"),
    (write_mz, "mz", "Loaded mase checkpoint from"),
]


@pytest.mark.parametrize(("write", "load_type", "message"), WRITERS)
def test_every_kind_is_loaded(write, load_type, message, tmp_path, caplog):
    caplog.set_level("INFO", "chop")
    model = network()
    path = write(model, tmp_path)
    loaded = load_model(load_name=str(path), load_type=load_type, model=network())
    assert same(model, loaded)
    assert f"{message} {path}" in caplog.text


@pytest.mark.parametrize(("write", "load_type", "message"), WRITERS[:6])
def test_auto_goes_by_the_ending(write, load_type, message, tmp_path):
    model = network()
    assert same(model, load_model(write(model, tmp_path), "auto", network()))


def test_a_model_inside_a_model_keeps_its_name(tmp_path):
    model = nn.Module()
    model.model = nn.Linear(2, 2)
    path = write_pl(model, tmp_path)
    again = nn.Module()
    again.model = nn.Linear(2, 2)
    assert same(model, load_model(path, "pl", again))


@pytest.mark.parametrize("load_type", ["pt", "pl", "mz"])
def test_a_file_that_would_run_code_is_refused_and_does_not_run(load_type, tmp_path):
    target = tmp_path / "went-off"

    class Local:
        def __reduce__(self):
            return (open, (str(target), "w"))

    file = tmp_path / {"pt": "a.pt", "pl": "a.ckpt", "mz": "graph_module.mz"}[load_type]
    torch.save({"state_dict": Local()}, file)
    with pytest.raises(ValueError, match="reading it would run code"):
        load_model(file, load_type, network())
    file.write_bytes(pickle.dumps(Local()))
    with pytest.raises(ValueError, match=r"run code|damaged"):
        load_model(file, load_type, network())
    assert not target.exists()


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path):
    model = network()
    before = {k: v.clone() for k, v in state(model).items()}
    wrong = dict(before)
    wrong["extra.weight"] = wrong.pop("0.bias")
    wrong["2.weight"] = torch.zeros(9, 9)
    torch.save(wrong, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="does not fit") as error:
        load_model(tmp_path / "w.pt", "pt", model)
    text = str(error.value)
    assert "missing 0.bias" in text
    assert "unexpected extra.weight" in text
    assert "2.weight [9, 9] instead of [2, 4]" in text
    assert all(torch.equal(v, before[k]) for k, v in state(model).items())


@pytest.mark.parametrize("damage", ["empty", "text", "truncated"])
@pytest.mark.parametrize("ending", ["pt", "ckpt", "safetensors"])
def test_damaged_files_are_one_sentence(damage, ending, tmp_path):
    write = {"pt": write_pt, "ckpt": write_pl, "safetensors": write_safetensors}[ending]
    file = write(network(), tmp_path)
    whole = file.read_bytes()
    broken = {"empty": b"", "text": b"hello world\n" * 20, "truncated": whole[: len(whole) // 2]}
    file.write_bytes(broken[damage])
    with pytest.raises(ValueError, match=r"damaged|run code") as error:
        load_model(file, "auto", network())
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "load_type", "error", "sentence"),
    [
        ("nowhere.pt", "pt", FileNotFoundError, "there is no checkpoint"),
        ("best.ckpt", "zip", ValueError, "load_type must be pt, pl, mz, hf or auto, not 'zip'"),
        ("number.pt", "pt", ValueError, "holds an object of type int, not a state_dict"),
        ("list.ckpt", "pl", ValueError, "not a Lightning checkpoint, as it has no state_dict; try `load_type='pt'`"),  # noqa: E501
        ("", "hf", FileNotFoundError, "has none of the files model.safetensors"),
    ],
)  # fmt: skip
def test_wrong_names_and_kinds_are_refused(name, load_type, error, sentence, tmp_path):
    write_pl(network(), tmp_path)
    torch.save(3, tmp_path / "number.pt")
    torch.save([1], tmp_path / "list.ckpt")
    with pytest.raises(error, match=sentence):
        load_model(tmp_path / name, load_type, network())


def test_a_folder_that_has_lost_its_graph_is_refused(tmp_path):
    folder = write_mz(network(), tmp_path)
    (folder / "node_meta_param.toml").touch()
    with pytest.raises(ValueError, match=r"has no graph.json; copy the whole directory"):
        load_model(folder, "mz", network())


def test_weights_that_say_nothing_of_formats_are_remarked(tmp_path, caplog):
    load_model(write_mz(network(), tmp_path), "mz", network())
    assert "holds weights only" in caplog.text
    wrapped = {f"model.{k}": v for k, v in state(network()).items()}
    began = {"load_type": "mz", "load_name": None}  # the default, and nothing was loaded
    torch.save({"state_dict": wrapped, "hyper_parameters": began}, tmp_path / "plain.ckpt")
    load_model(tmp_path / "plain.ckpt", "pl", network())
    assert "of a transformed network" not in caplog.text
    began["load_name"] = "transformed_ckpt"
    torch.save({"state_dict": wrapped, "hyper_parameters": began}, tmp_path / "best.ckpt")
    load_model(tmp_path / "best.ckpt", "pl", network())
    assert "of a transformed network" in caplog.text


def test_a_missing_model_is_refused_and_another_ending_is_remarked(tmp_path, caplog):
    with pytest.raises(ValueError, match="pass the model to load"):
        load_model(write_pt(network(), tmp_path), "pt")
    path = shutil.move(write_pl(network(), tmp_path), tmp_path / "best.bin")
    load_model(path, "pl", network())
    assert "does not end in .ckpt" in caplog.text


def test_a_saved_graph_takes_the_place_of_the_model(tmp_path):
    model = network()
    MaseGraph(model).export(tmp_path / "g")
    for load_type in ("mz", "auto"):
        loaded = load_model(tmp_path / "g", load_type, model=None)
        assert same(model, loaded)
        x = torch.randn(5, 3)
        assert torch.equal(loaded(x), model(x))
    assert load_graph(tmp_path / "g").model.state_dict().keys() == model.state_dict().keys()


# ------------------------------------------------------------------ directories, links, old files


@pytest.mark.parametrize("load_type", ["pl", "pt", "mz", "auto"])
def test_the_directory_of_a_training_run_means_its_best_checkpoint(load_type, tmp_path):
    model, other = network(), network()
    write_pl(other, tmp_path)
    load_model(tmp_path, load_type, model)
    assert same(model, other)


@pytest.mark.parametrize("load_type", ["mz", "pl", "auto"])
def test_the_directory_of_a_project_means_the_best_checkpoint_of_its_training(load_type, tmp_path):
    trained, folder = network(), tmp_path / "software" / "training_ckpts"
    folder.mkdir(parents=True)
    write_pl(trained, folder)
    assert same(load_model(tmp_path, load_type, network()), trained)


@pytest.mark.parametrize("load_type", ["mz", "auto"])
def test_the_directory_of_a_project_without_training_means_its_transformed_graph(
    load_type, tmp_path
):
    model = network()
    MaseGraph(model).export(tmp_path / "software" / "transform" / "transformed_ckpt")
    assert same(load_model(tmp_path, load_type), model)


def test_of_the_networks_of_a_project_the_most_finished_is_taken(tmp_path):
    software, made = tmp_path / "software", []
    places = (
        *("training_ckpts/best.ckpt", "training_ckpts/best-v1.ckpt"),
        *(
            "transform/transformed_ckpt",
            "search_ckpts/trial_7",
            "training_ckpts/transformed_ckpt-v1",
        ),
    )
    for place in places:
        path, model = software / place, network()
        if path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_pl(model, tmp_path).rename(path)
        else:
            MaseGraph(model).export(path)
        if path.name == "trial_7":
            note_design(path.parent, path, "applied")
        taken, _ = checkpoint_at(tmp_path, "mz")
        made.append(taken.relative_to(software).as_posix())
    assert tuple(made) == places
    assert checkpoint_at(tmp_path, "pl")[0].name == "best-v1.ckpt", "a checkpoint was asked for"
    started = network_at(tmp_path, "mz", without=("training", "design"))
    assert started is not None
    assert started.about == "the transformed network"


@pytest.mark.parametrize("place", ["../../../elsewhere", "/etc", "trial_1/..", 3])
def test_a_note_of_a_design_cannot_lead_out_of_the_search(place, tmp_path):
    folder = tmp_path / "software" / "search_ckpts"
    folder.mkdir(parents=True)
    (folder / "network.json").write_text(json.dumps({"network": place, "how": "applied"}))
    with pytest.raises(ValueError, match="does not name a design of this search; delete it"):
        checkpoint_at(tmp_path, "mz")


def test_the_directory_of_several_runs_means_the_last_of_them(tmp_path, caplog):
    first, last, model = network(), network(), network()
    write_pl(last, tmp_path).rename(tmp_path / "best-v10.ckpt")
    write_pl(first, tmp_path).rename(tmp_path / "best-v9.ckpt")
    write_pl(first, tmp_path)
    with caplog.at_level("INFO"):
        load_model(tmp_path, "pl", model)
    assert same(model, last)
    assert "best-v10.ckpt" in caplog.text


def test_a_directory_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is a directory without best.ckpt; give the checkpoint"):
        load_model(tmp_path, "pl", network())
    with pytest.raises(FileNotFoundError, match="holds no checkpoint; give a file, or a directory"):
        load_model(tmp_path, "mz", network())


def test_a_link_that_leads_nowhere_is_called_one(tmp_path):
    (tmp_path / "link.pt").symlink_to("gone.pt")
    (tmp_path / "folder").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "link.pt", tmp_path / "folder" / "weights.pt"):
        with pytest.raises(
            FileNotFoundError, match=r"is a symbolic link to '.*gone(\.pt)?', which"
        ):
            load_model(path, "pt", network())


@pytest.mark.parametrize(
    ("load_type", "wanted"),
    [
        ("mz", "give the directory of a graph that `ch transform` saved"),
        ("hf", "give a Hugging Face directory or one of its files of weights"),
        ("pt", "give a file that torch.save wrote"),
    ],
)
def test_advice_for_a_text_file_is_that_of_its_type(load_type, wanted, tmp_path):
    (tmp_path / "notes.txt").write_text("hello world\n" * 20)
    with pytest.raises(ValueError, match="is damaged or not a checkpoint") as error:
        load_model(tmp_path / "notes.txt", load_type, network())
    assert wanted in str(error.value)
    assert ("torch.save" in str(error.value)) == (load_type == "pt")


def test_a_graph_of_an_older_mase_is_told_from_one_that_lost_a_file(tmp_path, caplog):
    folder = tmp_path / "transformed_ckpt"
    folder.mkdir()
    model = network()
    torch.save(model, folder / "graph_module.mz")
    torch.save(state(model), folder / "state_dict.pt")
    (folder / "node_meta_param.toml").touch()
    for path in (folder, folder / "graph_module.mz"):
        with pytest.raises(ValueError, match=r"was saved by an older MASE as a pickle") as error:
            load_model(path, "mz", network())
        assert "copy the whole directory" not in str(error.value)
        assert f"{folder / 'state_dict.pt'} with `load_type='pt'`" in str(error.value)
    for load_type in ("pt", "mz"):
        caplog.clear()
        load_model(folder / "state_dict.pt", load_type, network())
        assert "without the formats and masks" in caplog.text
