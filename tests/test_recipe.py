"""A recipe is all that makes a model: it survives JSON, and its id changes with anything in it."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyshot.errors import BadInput
from anyshot.recipe import FIRST_FIELDS, Recipe
from anyshot.tables import read_table

ROOT = Path(__file__).parents[1]
PRETRAINED = Recipe(data="cub", head="linear", train_shot=1, way=100, batch=128)
RECIPE = Recipe(data="cub", head="proto", train_shot=4, way=64, start=PRETRAINED)
OTHER = {str: "other", int: 24, float: 0.125, bool: True, tuple: (2, 4), type(None): "max"}


@given(
    head=st.text(st.characters(blacklist_characters="/\\\0", codec="utf-8"), min_size=1, max_size=9),
    train_shot=st.integers(2, 64),
    way=st.integers(2, 99),
    lr=st.floats(1e-9, 10),
    drops=st.lists(st.integers(0, 999), max_size=3).map(tuple),
    start=st.sampled_from([None, PRETRAINED]),
)
def test_json_brings_a_recipe_back(**values):
    recipe = Recipe(data="glyphs", **values)
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe
    assert again.id == recipe.id


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_every_field_changes_the_id(name):
    value = getattr(RECIPE, name)
    other = {"optimiser": "adam", "schedule": "one-cycle", "augment": ("flip",), "head_lr": 0.125}
    other["start"] = replace(PRETRAINED, seed=1)
    assert replace(RECIPE, **{name: other.get(name, OTHER.get(type(value)))}).id != RECIPE.id


def test_every_default_of_the_first_fields_is_part_of_the_id():
    assert set(json.loads(RECIPE.to_json())) == FIRST_FIELDS
    first = {name: value for name, value in asdict(PRETRAINED).items() if name in FIRST_FIELDS}
    assert json.loads(RECIPE.to_json())["start"] == json.loads(json.dumps(first))


@dataclass(frozen=True, kw_only=True)
class Grown(Recipe):
    """A recipe as a later version may have it."""

    margin: float = 0.25


def test_a_field_that_is_added_renames_nothing_that_exists():
    old = {field.name: getattr(RECIPE, field.name) for field in fields(Recipe)}
    old["start"] = Grown(**{field.name: getattr(PRETRAINED, field.name) for field in fields(Recipe)})
    grown = Grown(**old)
    assert (grown.id, grown.to_json()) == (RECIPE.id, RECIPE.to_json())
    assert Grown.from_json(RECIPE.to_json()) == grown, "what was written before still loads"
    assert replace(grown, margin=0.5).id != RECIPE.id
    assert Grown.from_json(replace(grown, margin=0.5).to_json()).margin == 0.5


def test_models_that_are_published_keep_their_ids():
    """The names of models in results/ and studies/ready/ end in the ids of their recipes; tables name the same ids."""
    for path in ROOT.glob("studies/ready/*/*/recipe.json"):
        assert Recipe.from_json(path.read_text()).name == path.parent.name
    published = [(path, json.loads(path.read_text())) for path in ROOT.glob("results/**/recipes.json")]
    assert sum(len(recipes) for _, recipes in published) == 158
    for path, recipes in published:
        for name, recipe in recipes.items():
            assert Recipe.from_json(json.dumps(recipe)).name == name
        ids = {row["model"] for row in read_table(path.with_name("table.csv"))}
        assert ids <= {name.rpartition("-")[2] for name in recipes}


def test_an_unknown_field_is_named_with_the_nearest():
    text = json.dumps(json.loads(RECIPE.to_json()) | {"epoch": 3})
    with pytest.raises(BadInput, match=r"'epoch'.*epochs"):
        Recipe.from_json(text)


@pytest.mark.parametrize("bad", [{"train_shot": 1}, {"way": 1}, {"epochs": 0}, {"mixed": (3,)}, {"mixed": (256,)}])
def test_what_cannot_be_trained_is_refused(bad):
    with pytest.raises(BadInput):
        replace(RECIPE, **bad)


def test_step_schedule_drops_at_its_epochs():
    recipe = replace(RECIPE, epochs=10, drops=(4, 8), factor=0.5)
    assert [recipe.learning_rate(epoch / 10) for epoch in (0, 3.9, 4, 7.9, 8, 9.9)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


@given(st.floats(0, 1, exclude_max=True))
def test_one_cycle_rises_then_falls_within_its_peak(done):
    recipe = replace(RECIPE, schedule="one-cycle")
    assert 0 <= recipe.learning_rate(done) <= 1
    assert recipe.learning_rate(0.3) == 1
    assert (recipe.learning_rate(done) > recipe.learning_rate(done / 2)) or done >= 0.3 or done == 0
