"""Names -> things, near-miss errors, lazy discovery of a folder."""

import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import chop
from chop import extensions
from chop.registry import ByClass, Registry, UnknownName, nearest, unknown


@pytest.fixture
def shapes():
    registry = Registry[object]("shape")
    registry.register("circle", "disc")(1)
    registry.register("square")(2)
    return registry


def test_a_thing_is_found_under_each_of_its_names(shapes):
    assert (shapes["circle"], shapes["disc"], shapes["square"]) == (1, 1, 2)
    assert len(shapes) == 3
    assert "square" in shapes


def test_an_unknown_name_is_refused_with_the_nearest_one(shapes):
    with pytest.raises(UnknownName) as caught:
        shapes["sqare"]
    assert str(caught.value) == (
        "unknown shape 'sqare'; did you mean 'square'? (known: circle, disc, square)"
    )
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("name", [["square"], {"a": 1}, None])
def test_a_name_that_is_no_text_is_unknown(shapes, name):
    assert name not in shapes
    with pytest.raises(UnknownName, match="unknown shape"):
        shapes[name]


def test_dashes_underscores_and_case_do_not_hide_the_nearest_name():
    assert nearest("JSC_Tiny", ["jsc-tiny", "jsc-s"]) == "jsc-tiny"


def test_a_hopeless_name_gets_no_hint():
    assert unknown("shape", "zzzzzz", ["circle"]) == "unknown shape 'zzzzzz' (known: circle)"
    assert unknown("shape", "x", []) == "unknown shape 'x' (known: none)"


def test_a_long_list_of_names_is_cut():
    message = unknown("op", "?", [f"op{i}" for i in range(100)])
    assert message.endswith(", … 60 more)")


def test_a_long_list_is_left_out_beside_a_suggestion():
    names = [f"op{i}" for i in range(100)]
    assert unknown("op", "op_7", names) == "unknown op 'op_7'; did you mean 'op7'?"


def test_two_things_under_one_name_are_an_error_that_names_both(shapes):
    with pytest.raises(ValueError, match="shape 'square' registered twice: 2 and 3"):
        shapes.register("square")(3)


def test_a_notebook_cell_may_run_twice():
    registry = Registry[type]("thing")
    for value in (1, 2):

        @registry.register("mine")
        class Mine:
            number = value

    assert registry["mine"].number == 2


def test_the_files_of_a_folder_register_themselves_on_first_use(tmp_path, monkeypatch):
    package = tmp_path / "folder_of_things"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from chop.registry import Registry\nTHINGS = Registry('thing', __name__)\n"
    )
    (package / "inner" / "__init__.py").write_text("")
    register = "from folder_of_things import THINGS\nTHINGS.register({name!r})({name!r}.upper())\n"
    (package / "scripts").mkdir()
    (package / "scripts" / "three.py").write_text("import a_module_that_nobody_has\n")
    (package / "one.py").write_text(register.format(name="one"))
    (package / "inner" / "two.py").write_text(register.format(name="two"))
    monkeypatch.syspath_prepend(tmp_path)
    from folder_of_things import THINGS

    assert "folder_of_things.one" not in sys.modules
    assert dict(THINGS) == {"one": "ONE", "two": "TWO"}
    assert repr(THINGS) == "<thing registry: one, two>"


def test_what_replaces_a_thing_before_its_file_is_imported_stays(tmp_path, monkeypatch):
    package = tmp_path / "replaced_things"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from chop.registry import Registry\nTHINGS = Registry('thing', __name__)\n"
    )
    (package / "one.py").write_text(
        "from replaced_things import THINGS\nTHINGS.register('mine', 'one', replace=True)('ours')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from replaced_things import THINGS

    THINGS.register("mine", replace=True)("yours")
    assert dict(THINGS) == {"mine": "yours", "one": "ours"}


def test_methods_that_are_added_later_are_asked_too(tmp_path, monkeypatch):
    things = Registry[str]("thing", room="things")
    assert "late" not in things
    folder = tmp_path / "late_methods" / "one"
    folder.mkdir(parents=True)
    for part in (folder.parent, folder):
        (part / "__init__.py").write_text("")
    (folder / "things.py").write_text("import home\nhome.things.register('late')('LATE')\n")
    monkeypatch.setitem(sys.modules, "home", SimpleNamespace(things=things))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "METHODS", [*extensions.METHODS, "late_methods"])
    assert things["late"] == "LATE"


def test_methods_are_imported_for_what_the_packages_do_not_register(tmp_path, monkeypatch):
    method = tmp_path / "folder_of_methods" / "new"
    method.mkdir(parents=True)
    register = "from animals import ANIMALS\nANIMALS.register({0!r})({0!r}.upper())\n"
    method.with_name("__init__.py").write_text("")
    (method / "__init__.py").write_text("")
    (method / "animals.py").write_text(register.format("bat"))
    package = tmp_path / "animals"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from chop.registry import Registry\n"
        "ANIMALS = Registry('animal', __name__, room='animals')\n"
    )
    (package / "cat.py").write_text(register.format("cat"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "METHODS", ["folder_of_methods"])
    from animals import ANIMALS

    assert ANIMALS["cat"] == "CAT"
    assert "folder_of_methods.new.animals" not in sys.modules
    assert ANIMALS["bat"] == "BAT"


def test_one_name_imports_the_files_that_have_it_in_quotes_and_no_others(tmp_path, monkeypatch):
    package = tmp_path / "many_things"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from chop.registry import Registry\nTHINGS = Registry('thing', __name__)\n"
    )
    register = "from many_things import THINGS\nTHINGS.register({name})({name})\n"
    (package / "one.py").write_text(register.format(name='"one"'))
    (package / "two.py").write_text(register.format(name='"two"'))
    (package / "three.py").write_text(register.format(name='"thr" + "ee"'))
    monkeypatch.syspath_prepend(tmp_path)
    from many_things import THINGS

    assert None not in THINGS
    assert THINGS["one"] == "one"
    assert "many_things.one" in sys.modules
    assert not {"many_things.two", "many_things.three"} & sys.modules.keys()
    assert THINGS["three"] == "three"  # all files are imported for a name that no text has
    assert "many_things.two" in sys.modules


def test_a_file_that_looks_things_up_while_it_registers_does_not_import_the_others(
    tmp_path, monkeypatch
):
    package = tmp_path / "careful_things"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from chop.registry import Registry\nTHINGS = Registry('thing', __name__)\n"
    )
    register = (
        "from careful_things import THINGS\nassert {0} not in THINGS\nTHINGS.register({0})(1)\n"
    )
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(register.format(f'"{name}"'))
    monkeypatch.syspath_prepend(tmp_path)
    from careful_things import THINGS

    assert THINGS["one"] == 1
    assert "careful_things.two" not in sys.modules


def test_a_name_without_letters_imports_no_files(tmp_path, monkeypatch):
    package = tmp_path / "quiet_things"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from chop.registry import Registry\nTHINGS = Registry('thing', __name__)\n"
    )
    (package / "one.py").write_text('"""A docstring has quotes without a name: \'\'."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    from quiet_things import THINGS

    assert THINGS.quoted("") is None
    assert "quiet_things.one" not in sys.modules


def test_a_thread_waits_for_files_that_another_one_imports(tmp_path, monkeypatch):
    package = tmp_path / "slow_things"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import threading\nfrom chop.registry import Registry\n"
        "THINGS, BEGUN, GO = Registry('thing', __name__), threading.Event(), threading.Event()\n"
    )
    (package / "one.py").write_text(
        "from slow_things import BEGUN, GO, THINGS\n"
        "BEGUN.set()\nassert GO.wait(60)\nTHINGS.register('one')(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from slow_things import BEGUN, GO, THINGS

    seen = []
    threads = [threading.Thread(target=lambda: seen.append(dict(THINGS))) for _ in range(2)]
    threads[0].start()
    assert BEGUN.wait(60)
    threads[1].start()
    threads[1].join(0.05)  # time to look before there is anything
    GO.set()
    for thread in threads:
        thread.join()
    assert seen == [{"one": 1}] * 2


def test_a_class_has_what_is_registered_for_the_nearest_one_it_inherits_from():
    registry = ByClass[str]("sound")
    animal = type("Animal", (), {})
    dog = type("Dog", (animal,), {})
    registry.register(animal)("none")
    assert registry[dog] == "none"
    registry.register(dog)("bark")
    assert (registry[type("Puppy", (dog,), {})], registry[animal]) == ("bark", "none")
    assert registry.get(int) is None
    with pytest.raises(UnknownName) as missing:
        registry[int]
    assert str(missing.value) == "int has no sound; register one"


def test_a_file_that_cannot_be_imported_is_not_passed_over(tmp_path, monkeypatch):
    package = tmp_path / "folder_with_a_bug"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bad.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry[object]("thing", "folder_with_a_bug")
    for _ in range(2):  # not at the second look either
        with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
            list(registry)


def test_a_method_that_a_class_has_to_define_is_named():
    from chop.actions.search.samplers.base import Strategy

    class Lazy(Strategy):
        """Defines nothing."""

    with pytest.raises(NotImplementedError) as missing:
        Lazy(None).ask(0)
    assert str(missing.value) == (
        "the class Lazy does not define ask(), which every sampler needs; add the method"
    )


@pytest.mark.slow
def test_every_such_method_says_so():
    folder = Path(chop.__file__).parent
    bare = re.compile(r"raise NotImplementedError(\(\))?\s*(#.*)?$", re.MULTILINE)
    files = [file for file in folder.rglob("*.py") if bare.search(file.read_text("utf-8"))]
    assert not files, "raise chop.registry.not_defined(self, name, kind) instead"
