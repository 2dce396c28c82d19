"""Glyphs: the same seed draws the same images, whatever else is drawn; classes of the splits are disjoint."""

import numpy as np
import pytest

from anyshot import BadInput
from anyshot.data.glyphs import SPLIT_CLASSES, draw_class, glyphs

FEW = {"train": 3, "val": 2, "test": 2}


def test_a_store_of_glyphs_is_what_its_classes_draw(tmp_path):
    store = glyphs(tmp_path / "glyphs", FEW, images=5)
    assert store.items.shape == (35, 28, 28, 1)
    assert store.class_split == ("train",) * 3 + ("val",) * 2 + ("test",) * 2
    test = store.part("test")
    np.testing.assert_array_equal(test.items[5:], draw_class(6, 5))
    again = glyphs(tmp_path / "glyphs", FEW, images=5)
    np.testing.assert_array_equal(again.items, store.items)


def test_the_default_is_large_enough_for_32_shots_and_16_queries():
    assert sum(SPLIT_CLASSES.values()) >= 200


def test_seeds_and_classes_differ_and_difficulty_spreads_a_class():
    assert (draw_class(0, 2) != draw_class(1, 2)).any()
    assert (draw_class(0, 2, seed=1) != draw_class(0, 2)).any()
    spread = [draw_class(4, 40, difficulty).astype(float).std(0).mean() for difficulty in (0.0, 0.5, 1.0)]
    assert spread[0] < spread[1] < spread[2]
    assert draw_class(0, 3, size=40).shape == (3, 40, 40, 1)


def test_bad_glyphs_get_a_sentence(tmp_path):
    with pytest.raises(BadInput, match="at least 1 image"):
        glyphs(tmp_path / "glyphs", FEW, images=0)
    assert not (tmp_path / "glyphs").exists()
