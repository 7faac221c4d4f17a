"""Short texts as features: what is hashed alike, and a file of intents."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from fedaccord.data.published import hashed, load_published
from fedaccord.errors import DataError

FILE = """split,text,intent,domain
train,what is my balance,balance,banking
train,send ten dollars to ann,transfer,banking
train,will it rain today,weather,utility
val,is it cold,weather,utility
test,rain tomorrow,weather,utility
test,how do magnets work,oos,oos
"""


def written(folder, text=FILE):
    path = folder / "texts.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_texts_have_length_one_and_equal_texts_are_equal():
    train, test = hashed(["open the door", "close the door", "open the door"], ["open the door", ""], width=256)
    assert np.array_equal(train[0], train[2])
    assert np.array_equal(train[0], test[0])
    assert np.allclose(np.linalg.norm(train, axis=1), 1, atol=1e-6)
    assert not test[1].any()


def test_rare_grams_weigh_more():
    train, _ = hashed(["door bell", "door", "door", "door"], ["door"], width=4096)
    everywhere = train[1] > 0
    assert train[0][everywhere].max() < train[0][~everywhere].max()


def test_a_file_of_intents_names_its_domains_and_leaves_out_what_is_of_no_intent(tmp_path):
    read = load_published("clinc150", [written(tmp_path)])
    assert read.labels == ("balance", "transfer", "weather")
    assert read.groupings == {"coarse": {"banking": ["balance", "transfer"], "utility": ["weather"]}}
    assert (read.train.y.tolist(), read.test.y.tolist()) == ([0, 1, 2], [2])
    assert read.scaled


def test_settings_are_chosen_on_the_validation_part(tmp_path):
    """Texts of the test part are in neither part of it."""
    read = load_published("clinc150-validation", [written(tmp_path)])
    assert (read.train.y.tolist(), read.test.y.tolist()) == ([0, 1, 2], [2])
    _, cold = hashed(["what is my balance", "send ten dollars to ann", "will it rain today"], ["is it cold"])
    assert np.array_equal(read.test.x, cold)


def test_a_file_that_changed_is_read_again(tmp_path):
    path = written(tmp_path)
    first = load_published("clinc150", [path])
    assert load_published("clinc150", [path]) is first
    written(tmp_path, FILE + "train,make it rain,weather,utility\n")
    assert len(load_published("clinc150", [path]).train) == 4


def test_a_missing_column_is_told(tmp_path):
    with pytest.raises(DataError, match="has no column 'domain'; clinc150 has split, text, intent, domain"):
        load_published("clinc150", [written(tmp_path, "split,text,intent\ntrain,a,b\n")])
