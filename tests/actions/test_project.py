"""Where a run keeps what it makes, and how a run is found again."""

import datetime
import logging
import os

import pytest

from chop.actions.config import ConfigError, RunConfig, default_project_dir
from chop.actions.project import Project, find_project_to_resume

TODAY = datetime.date.today().isoformat()


@pytest.fixture
def config(tmp_path):
    usual = {"model": "jsc-tiny", "dataset": "jsc", "project_dir": tmp_path}
    return lambda **options: RunConfig(**usual | options)


@pytest.fixture
def earlier(tmp_path):
    """Makes the folder of an earlier run, with a checkpoint unless told otherwise."""

    def make(name, checkpoint="last.ckpt"):
        folder = tmp_path / name / "software" / "training_ckpts"
        folder.mkdir(parents=True)
        if checkpoint:
            (folder / checkpoint).touch()
        return tmp_path / name

    return make


def test_a_project_has_the_name_it_was_given(config, tmp_path):
    assert Project.of(config(project="mine")).folder == tmp_path / "mine"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "jsc-tiny_classification_jsc_"),
        ({"task": "cls"}, "jsc-tiny_classification_jsc_"),
        ({"task": "lm", "model": "facebook/opt-125m"}, "facebook-opt-125m_language_modeling_jsc_"),
        ({"dataset": "me/mine"}, "jsc-tiny_classification_me-mine_"),
    ],
)
def test_a_name_is_derived_from_model_task_data_set_and_date(config, options, name):
    assert Project.of(config(**options)).name == name + TODAY


def test_nothing_is_on_disk_before_the_project_is_created(config, tmp_path, caplog):
    project = Project.of(config(project="mine"))
    assert not list(tmp_path.iterdir())
    logging.getLogger("chop").propagate = True
    with caplog.at_level(logging.INFO, logger="chop"):
        project.create()
    assert sorted(path.name for path in project.folder.iterdir()) == ["hardware", "software"]
    assert caplog.messages == [f"Project will be created at {tmp_path / 'mine'}"]


def test_creating_a_project_again_keeps_what_is_in_it(config, earlier, caplog):
    folder = earlier("mine")
    logging.getLogger("chop").propagate = True
    with caplog.at_level(logging.INFO, logger="chop"):
        assert Project.of(config(project="mine")).create().can_be_resumed
    assert caplog.messages == [f"Project is in {folder}"]
    assert (folder / "software" / "training_ckpts" / "last.ckpt").exists()


def test_a_project_stays_in_its_folder(config):
    with pytest.raises(ConfigError, match=r"'../evil' is outside --project-dir; give a plain name"):
        Project.of(config(project="../evil"))


def test_yesterdays_run_is_found(config, earlier):
    earlier("jsc-tiny_classification_jsc_2020-02-01")
    newest = earlier("jsc-tiny_classification_jsc_2020-10-01", checkpoint="best-v1.ckpt")
    earlier("jsc-tiny_classification_jsc_2020-11-01", checkpoint=None)
    earlier("jsc-tiny_classification_jsc_2020-12-01_copy")
    earlier("jsc-tiny_classification_jsc_sim_2020-12-01")
    earlier("jsc-s_classification_jsc_2020-12-01")
    found = find_project_to_resume(config(resume=True))
    assert found == Project(newest)
    assert Project.of(config(resume=True, task="cls")) == found


def test_a_run_without_resume_starts_in_todays_folder(config, earlier):
    earlier("jsc-tiny_classification_jsc_2020-02-01")
    assert Project.of(config(is_to_auto_requeue=True)).name.endswith(TODAY)


def test_a_job_that_slurm_runs_again_goes_on_in_its_folder(config, earlier, monkeypatch):
    folder = earlier("jsc-tiny_classification_jsc_2020-02-01")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert Project.of(config(is_to_auto_requeue=True)).folder == folder


@pytest.mark.parametrize("project", [None, "mine"])
def test_resuming_what_never_ran_is_refused(config, tmp_path, project):
    assert find_project_to_resume(config(project_dir=tmp_path / "gone")) is None
    with pytest.raises(ConfigError, match=r"--resume: no training checkpoint in .*ckpts;"):
        Project.of(config(resume=True, project=project))


def test_a_project_dir_that_is_a_file_is_refused(config, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--project-dir: .*file is not a directory"):
        Project.of(config(project_dir=tmp_path / "file"))


def test_a_project_dir_that_cannot_be_written_to_is_refused(config, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    sentence = "cannot be written to; use a directory that you can write to"
    with pytest.raises(ConfigError, match=sentence):
        Project.of(config())


def test_results_lie_beside_the_checkpoint_unless_another_folder_was_given(config, earlier):
    owner = earlier("trained")
    checkpoint = str(owner / "software" / "training_ckpts" / "last.ckpt")
    options = {"load_name": checkpoint, "load_type": "pl"}
    assert Project.of(config(**options), beside_checkpoint=True).folder == owner
    default = config(**options, project_dir=default_project_dir())
    assert Project.of(default, beside_checkpoint=True).folder == owner
    elsewhere = owner.parent / "elsewhere"
    given = Project.of(config(**options, project_dir=elsewhere), beside_checkpoint=True)
    assert given.folder.parent == elsewhere


def test_a_checkpoint_that_nothing_can_be_put_beside_says_which_option_helps(config, earlier):
    owner = earlier("trained")
    checkpoint = str(owner / "software" / "training_ckpts" / "last.ckpt")
    owner.chmod(0o555)
    if os.access(owner, os.W_OK):
        pytest.skip("this user may write to every folder")
    with pytest.raises(ConfigError, match=r"--project-dir: .*trained cannot be written to; use a"):
        Project.of(config(load_name=checkpoint, load_type="pl"), beside_checkpoint=True)
