"""A dict whose documented keys are also typed attributes; the dict is the only storage."""

import copy
import json
import pickle
import pprint
from typing import ClassVar

import pytest
import torch

from chop.ir.record import Record


class Leaf(Record):
    width: int
    note: str


class Leaves(Record, of=Leaf): ...


class Tree(Record):
    about: ClassVar[str] = "a class variable is no field"
    one: Leaf
    many: Leaves
    plain: dict[str, int]


def test_an_attribute_and_its_key_are_the_same_thing():
    leaf = Leaf(width=8)
    assert leaf.width == leaf["width"] == 8
    leaf.width = 4
    assert leaf == {"width": 4}
    leaf["width"] = 2
    assert leaf.width == 2


def test_reading_an_absent_field_says_what_is_there():
    with pytest.raises(AttributeError, match=r"Leaf has no 'note' yet; it has \['width'\]"):
        _ = Leaf(width=8).note
    with pytest.raises(KeyError):
        Leaf(width=8)["note"]


def test_a_misspelt_field_is_refused_and_free_keys_are_items():
    leaf = Leaf()
    with pytest.raises(AttributeError, match=r"Leaf has no field 'widht'; free-form keys go"):
        leaf.widht = 8
    leaf["mine"] = 1
    assert leaf == {"mine": 1}


def test_class_variables_are_no_fields():
    assert Tree.about == "a class variable is no field"
    assert "about" not in Tree()


def test_a_field_may_not_hide_a_method_of_dict():
    with pytest.raises(TypeError, match=r"Bad\.items would hide dict\.items"):

        class Bad(Record):
            items: int


def test_fields_are_inherited_and_extended():
    class Wide(Leaf):
        height: int

    assert Wide(width=1, height=2).width == 1
    assert not hasattr(Leaf, "height")


@pytest.mark.parametrize(
    "write",
    [
        lambda tree: Tree(tree),
        lambda tree: Tree(**tree),
        lambda tree: Tree(list(tree.items())),
        lambda tree: _through(lambda new: new.update(tree)),
        lambda tree: _through(lambda new: new.__ior__(tree)),
        lambda tree: _through(lambda new: [new.setdefault(*item) for item in tree.items()]),
        lambda tree: _through(lambda new: [setattr(new, *item) for item in tree.items()]),
    ],
)
def test_plain_dicts_become_records_however_they_are_written(write):
    plain = {"one": {"width": 1}, "many": {"a": {"width": 2}}, "plain": {"x": 3}}
    tree = write(plain)
    assert tree == plain
    assert type(tree.one) is Leaf
    assert type(tree.many) is Leaves
    assert tree.many["a"].width == 2
    assert type(tree.plain) is dict


def _through(change):
    new = Tree()
    change(new)
    return new


def test_setdefault_gives_what_is_stored():
    tree = Tree()
    tree.setdefault("one", {"width": 1}).width = 5
    assert tree == {"one": {"width": 5}}
    assert tree.setdefault("one", {"width": 9}) is tree.one


def test_a_record_written_into_a_record_stays_itself():
    leaf = Leaf(width=1)
    assert Tree(one=leaf).one is leaf


def test_it_works_as_a_dict_everywhere():
    tree = Tree(one={"width": 1}, plain={"x": 2})
    assert isinstance(tree, dict)
    assert tree | {"more": 3} == {"one": {"width": 1}, "plain": {"x": 2}, "more": 3}
    assert {**tree} == tree
    assert json.loads(json.dumps(tree)) == tree
    assert pprint.pformat(tree) == "{'one': {'width': 1}, 'plain': {'x': 2}}"
    assert tree.pop("one") == {"width": 1}
    del tree["plain"]
    assert not tree


def test_a_clone_has_its_own_structure_and_shares_tensors():
    x = torch.zeros(2)
    tree = Tree(one={"width": 1, "value": x}, free={"list": [1, {"k": 2}]})
    new = tree.clone()
    assert type(new.one) is Leaf
    new.one.width = 9
    new["free"]["list"][1]["k"] = 9
    new["free"]["list"].append(9)
    assert tree == {"one": {"width": 1, "value": x}, "free": {"list": [1, {"k": 2}]}}
    assert new.one["value"] is x


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_pickles_are_records_of_the_same_kinds(copied):
    tree = Tree(one={"width": 1}, many={"a": {"width": 2}})
    new = copied(tree)
    assert new == tree
    assert new is not tree
    assert (type(new), type(new.one), type(new.many["a"])) == (Tree, Leaf, Leaf)
    assert new.one is not tree.one
