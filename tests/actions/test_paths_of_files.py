"""What a TOML file names is written inside the project, and it is refused before code is run."""

import pytest

from chop.passes import PASSES
from chop.passes.options import PathUse

HEAD = 'model = "jsc-tiny"\ndataset = "jsc-sim"\nproject = "p"\n'
WRITES = [
    (run.name, key)
    for run in PASSES.values()
    for key, use in run.paths.items()
    if use is PathUse.WRITTEN and not run.python_only
]
MARKS_ITSELF = "from pathlib import Path\nPath({marker!r}).touch()\n"


@pytest.fixture
def refused(here, tmp_path):
    """The sentence that an action has for a file, which a file of --import is not run for."""
    (tmp_path / "register.py").write_text(MARKS_ITSELF.format(marker=str(tmp_path / "marker")))

    def run(action, text, *flags):
        (tmp_path / "a.toml").write_text(HEAD + "imports = ['register.py']\n" + text)
        words = ("--config", tmp_path / "a.toml", "--project-dir", tmp_path / "out", *flags)
        code, _, said = here(action, *words)
        assert code == 2, said
        assert not (tmp_path / "marker").exists()
        assert "Traceback" not in said
        return said

    return run


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "key"), WRITES)
def test_a_file_that_is_named_outside_of_the_project_is_refused(tmp_path, refused, name, key):
    away = tmp_path / "away.svg"
    away.write_text("mine")
    (tmp_path / "out" / "p" / "software" / "transform").mkdir(parents=True)
    (tmp_path / "out" / "p" / "software" / "transform" / "link.svg").symlink_to(away)
    (tmp_path / "out" / "p" / "software" / "transform" / "deep").symlink_to(tmp_path)
    for value in (away, "../../../../away.svg", "../../x", "~/x.svg", "link.svg", "deep/away.svg"):
        said = refused("transform", f"[passes.{name}]\n{key} = '{value}'\n")
        assert f"passes.{name}.{key}: " in said
        assert "is outside" in said
        assert "use a path inside it" in said
    assert away.read_text() == "mine"


def test_entries_of_a_list_of_passes_are_looked_at_as_well(refused):
    passes = '[[passes]]\nname = "report_graph"\n[[passes]]\nname = "cost"\npicture = "/x.svg"\n'
    assert "entry 2: passes.cost.picture: '/x.svg' is outside" in refused("transform", passes)


def test_names_inside_the_project_are_written_through_a_linked_project_dir(here, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    folder = tmp_path / "scratch" / "p" / "software" / "transform"
    inside = [("report_graph", "deep/../graph.txt"), ("report_graph", f"{folder}/absolute.txt")]
    passes = "".join(f"[[passes]]\nname = '{n}'\nfile_name = '{f}'\n" for n, f in inside)
    (tmp_path / "a.toml").write_text(HEAD + passes)
    words = ("--config", tmp_path / "a.toml", "--project-dir", tmp_path / "out")
    code, _, said = here("transform", *words)
    assert code == 0, said
    assert (folder / "graph.txt").is_file()
    assert (folder / "absolute.txt").is_file()


@pytest.mark.parametrize("study", ["../escaped", "a/b", "..", "", "/x", "a\\b", "a\nb", "x" * 300])
def test_a_study_is_named_like_a_file(tmp_path, refused, study):
    said = refused("search", "[search]\n", "--study", study)
    assert "--study: " in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("storage", ["{away}/s.journal", "sqlite:///{away}/s.db", "../s.journal"])
def test_a_study_in_a_file_elsewhere_is_named_on_the_command_line(tmp_path, here, refused, storage):
    url = storage.format(away=tmp_path.parent)
    said = refused("search", f"storage = '{url}'\n[search]\n")
    assert "is outside the current folder and the project; give it on the" in said
    code, _, said = here("search", "--config", tmp_path / "a.toml", "--storage", url)
    assert code == 2
    assert "search.search_space is missing" in said


def test_a_project_that_no_file_system_takes_is_refused_at_once(refused):
    assert (
        "--project: 'xxxxxxxxxxxxxxxxxxxx'… is longer than 200 bytes; shorten the name"
        in refused("train", "", "--project", "x" * 300)
    )


@pytest.mark.parametrize(
    ("action", "text", "flags", "expected"),
    [
        ("train", "max_steps = 0\n", (), "--max-steps"),
        ("train", "learning_rate = 'high'\n", (), "learning_rate"),
        ("transform", "[passes.cost]\npicture = 'cost.png'\n", (), "passes.cost.picture"),
        ("transform", "[passes.mine]\n[passes.report_graph]\nfle = 1\n", (), "report_graph.fle"),
        ("transform", "", (), "there are no passes to run"),
        ("search", "[search]\n", ("--storage", "mysql://host/db"), "--storage"),
        ("search", "storage = 'postgresql://me:x/db'\n[search]\n", (), "--storage"),
        ("search", "[search]\n", ("--resume",), "there is no search in"),
    ],
)
def test_options_are_refused_before_files_of_the_user_are_run(
    refused, action, text, flags, expected
):
    assert expected in refused(action, text, *flags)


@pytest.mark.parametrize("code", ["", "0", "3", "'done'"])
def test_a_file_of_the_user_does_not_end_the_program(here, tmp_path, code):
    (tmp_path / "ends.py").write_text(f"import sys\nsys.exit({code})\n")
    code, _, said = here("train", "jsc-tiny", "jsc-sim", "--import", tmp_path / "ends.py")
    assert code == 1
    assert said.startswith(
        f"ch: --import: {tmp_path / 'ends.py'}, line 2: it would end the program"
    )
    assert len(said.splitlines()) == 1
