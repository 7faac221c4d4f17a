"""What the arrays of a file mean, and what is said of arrays that mean nothing."""

from __future__ import annotations

import os
import pickle
import zipfile

import numpy as np
import pytest

from fedaccord.data.dataset import Rows, from_arrays, load_dataset, read_npz
from fedaccord.data.registry import DATA_VARIABLE, DATASETS
from fedaccord.errors import DataError

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])
SETS = np.eye(3, dtype=np.uint8)[Y]
NAMED = np.array(["ant", "bee", "cat"])[Y]


def refusal(**arrays):
    with pytest.raises(DataError) as caught:
        from_arrays(arrays, "f.npz")
    return str(caught.value)


class TestDigits:
    def test_they_come_with_the_package(self, tmp_path):
        digits = load_dataset("digits", tmp_path)
        assert (len(digits.train), digits.shape, digits.test) == (1797, (1, 8, 8), None)
        assert digits.labels == tuple("0123456789")
        assert digits.images
        assert (digits.train.x.dtype, digits.train.x.min(), digits.train.x.max()) == (np.float32, -1, 1)
        assert np.bincount(digits.train.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]

    def test_their_groupings_name_every_digit_once(self, tmp_path):
        for groups in load_dataset("digits", tmp_path).groupings.values():
            assert sorted(digit for members in groups.values() for digit in members) == list("0123456789")


class TestForms:
    def test_samples_and_true_classes(self):
        read = from_arrays({"x": X, "y": Y.astype(np.uint8)}, "f.npz")
        assert np.array_equal(read.train.x, X.astype(np.float32))
        assert (read.train.x.dtype, read.train.y.dtype) == (np.float32, np.int64)
        assert read.train.y.tolist() == Y.tolist()
        assert (read.labels, read.shape, read.images, read.test) == (("0", "1", "2"), (4,), False, None)
        assert (read.train.tags, read.train.candidates) == (None, None)

    def test_a_capital_x_is_the_same(self):
        assert np.array_equal(from_arrays({"X": X, "y": Y}, "f.npz").train.x, X.astype(np.float32))

    def test_tags(self):
        tags = np.array([[1, 0], [0, -1], [1, 1], [0, 0], [-1, -1], [1, 0]])
        read = from_arrays({"x": X, "Y": tags}, "f.npz")
        assert read.train.tags.dtype == np.int8
        assert np.array_equal(read.train.tags, tags)
        assert (read.labels, read.train.y) == (("0", "1"), None)

    def test_candidates(self):
        read = from_arrays({"x": X, "y": Y, "candidates": SETS}, "f.npz")
        assert read.train.candidates.dtype == bool
        assert np.array_equal(read.train.candidates, SETS.astype(bool))

    def test_a_published_split(self):
        read = from_arrays({"x": X, "y": Y, "is_test": np.array([0, 1, 0, 0, 1, 0])}, "f.npz")
        assert np.array_equal(read.train.x, X[[0, 2, 3, 5]])
        assert np.array_equal(read.test.x, X[[1, 4]])
        assert (read.train.y.tolist(), read.test.y.tolist()) == ([0, 2, 0, 2], [1, 1])
        assert read.labels == ("0", "1", "2")  # a class that only the test has counts too

    def test_a_published_split_without_test_rows(self):
        assert from_arrays({"x": X, "y": Y, "is_test": np.zeros(6)}, "f.npz").test is None

    @pytest.mark.parametrize("key", ["label_names", "class_names"])
    def test_names(self, key):
        names = np.array(["ant", "bee", "cat", "dog"])  # one that does not occur
        assert from_arrays({"x": X, "y": Y, key: names}, "f.npz").labels == ("ant", "bee", "cat", "dog")

    def test_class_names(self):
        read = from_arrays({"x": X, "y": NAMED}, "f.npz")
        assert (read.labels, read.train.y.tolist(), read.train.y.dtype) == (("ant", "bee", "cat"), Y.tolist(), np.int64)
        sized = from_arrays({"x": X, "y": np.array([b"10", b"9", b" 2 ", b"", b"9", b"10"])}, "f.npz")
        assert (sized.labels, sized.train.y.tolist()) == (("2", "9", "10"), [2, 1, 0, -1, 1, 2])
        given = from_arrays({"x": X, "y": NAMED, "label_names": np.array(["dog", "cat", "bee", "ant"])}, "f.npz")
        assert (given.labels[3], given.train.y.tolist()) == ("ant", [3, 2, 1, 3, 2, 1])

    def test_class_names_of_a_published_test(self):
        arrays = {"x_train": X, "y_train": NAMED, "x_test": X[:2], "y_test": np.array(["cow", "bee"])}
        read = from_arrays(arrays, "f.npz")
        assert (read.labels, read.test.y.tolist()) == (("ant", "bee", "cat", "cow"), [3, 1])

    def test_training_and_test_arrays(self):
        arrays = {"x_train": X, "y_train": Y, "x_test": X[:2] + 100, "y_test": np.array([3, 0])}
        read = from_arrays(arrays, "f.npz")
        assert np.array_equal(read.train.x, X)
        assert read.test.x[0, 0] == 100
        assert read.test.y.tolist() == [3, 0]
        assert len(read.labels) == 4

    def test_fine_and_coarse_labels(self):
        names = {"fine_names": np.array(["ant", "bee", "cat"]), "coarse_names": np.array(["insect", "mammal"])}
        arrays = {"x": X, "fine": Y, "coarse": Y // 2, "fine_to_coarse": np.array([0, 0, 1]), **names}
        read = from_arrays(arrays, "f.npz")
        assert read.train.y.tolist() == Y.tolist()
        assert read.labels == ("ant", "bee", "cat")
        assert read.groupings == {"coarse": {"insect": ["ant", "bee"], "mammal": ["cat"]}}
        assert read.train.columns["coarse"].tolist() == [0, 0, 1, 0, 0, 1]

    def test_other_arrays_by_row_are_columns(self):
        ward = np.array(list("aabbcc"))
        read = from_arrays({"x": X, "y": Y, "ward": ward, "total": np.array([6]), "table": X}, "f.npz")
        assert list(read.train.columns) == ["ward"]
        assert read.train.take(np.array([5, 0])).columns["ward"].tolist() == ["c", "a"]

    def test_a_column_of_the_training_part_has_its_own_name(self):
        arrays = {"x_train": X, "x_test": X, "y_train": Y, "y_test": Y, "user_train": Y + 10, "user_test": Y + 20}
        read = from_arrays(arrays, "f.npz")
        assert read.train.columns["user"].tolist() == (Y + 10).tolist()
        assert read.test.columns["user"].tolist() == (Y + 20).tolist()

    def test_bytes_are_pixels(self):
        grey = np.zeros((6, 5, 7), dtype=np.uint8)
        grey[0, 1, 2], grey[0, 3, 4] = 255, 51
        read = from_arrays({"x": grey, "y": Y}, "f.npz")
        assert (read.shape, read.images) == ((1, 5, 7), True)
        assert read.train.x[0, 0, 1, 2] == 1
        assert read.train.x[0, 0, 0, 0] == -1
        assert read.train.x[0, 0, 3, 4] == pytest.approx(-0.6)

    def test_colours_come_first(self):
        colour = np.zeros((6, 5, 7, 3), dtype=np.uint8)
        colour[2, 1, 4, 2] = 255
        read = from_arrays({"x": colour, "y": Y}, "f.npz")
        assert (read.shape, read.images) == ((3, 5, 7), True)
        assert read.train.x[2, 2, 1, 4] == 1
        assert (read.train.x == 1).sum() == 1

    def test_bytes_by_row_are_numbers(self):
        read = from_arrays({"x": X.astype(np.uint8), "y": Y}, "f.npz")
        assert np.array_equal(read.train.x, X)
        assert not read.images

    def test_rows_keep_together_what_belongs_together(self):
        rows = Rows(X, Y, SETS, SETS.astype(bool), {"n": np.arange(6)}).take(np.array([4, 2]))
        assert len(rows) == 2
        assert np.array_equal(rows.x, X[[4, 2]])
        assert (rows.y.tolist(), rows.columns["n"].tolist()) == ([1, 2], [4, 2])
        assert rows.tags.tolist() == rows.candidates.tolist() == SETS[[4, 2]].tolist()


class TestRefusals:
    @pytest.mark.parametrize(
        ("arrays", "told"),
        [
            ({"y": Y}, "'f.npz' has no array 'x' of samples; it has y"),
            ({"x_train": X, "x_test": X[:, :2]}, "samples differ in shape: (4,) for training and (2,) for the test"),
            ({"x": X, "y": Y[:5]}, "'f.npz': 'y' has 5 rows, the samples 6"),
            ({"x": X, "Y": SETS[:5]}, "'f.npz': 'Y' has 5 rows, the samples 6"),
            ({"x": X, "candidates": SETS[:5]}, "'f.npz': 'candidates' has 5 rows, the samples 6"),
            ({"x": X, "y": Y, "is_test": np.zeros(5)}, "'f.npz': 'is_test' has 5 rows, the samples 6"),
            ({"x": X, "y": Y, "is_test": np.full(6, "no")}, "'is_test' should hold 0 and 1 only"),
            ({"x": X, "y": Y, "is_test": np.ones(6)}, "'f.npz' has no training samples"),
            ({"x": X[:0], "y": Y[:0]}, "'f.npz' has no training samples"),
            ({"x": X[:, 0], "y": Y}, "of type float64 and shape (6,); numbers by row are needed"),
            ({"x": X[:, :0], "y": Y}, "of type float64 and shape (6, 0); numbers by row are needed"),
            ({"x": X.astype(str), "y": Y}, "numbers by row are needed"),
            ({"x": X, "y": Y[:, None]}, "'f.npz': 'y' has 2 dimensions, 1 are needed"),
            ({"x": X, "Y": Y}, "'f.npz': 'Y' has 1 dimensions, 2 are needed"),
            ({"x": X, "y": Y + 0.5}, "'y' holds float64 values; class names, or numbers from 0, are needed"),
            ({"x": X, "y": NAMED[:5]}, "'f.npz': 'y' has 5 rows, the samples 6"),
            ({"x": X, "y": NAMED[:, None]}, "'f.npz': 'y' has 2 dimensions, 1 are needed"),
            (
                {"x": X, "y": NAMED, "label_names": np.array(["ant", "bee", "catt"])},
                "'y' holds the name 'cat', which is not in its list of labels; did you mean 'catt'?",
            ),
            ({"x": X, "y": NAMED, "candidates": np.ones((6, 4))}, "'f.npz' names 3 labels but uses 4"),
            ({"x": X, "y": np.array([b"\xff"] * 6)}, "'f.npz': 'y' holds text that is not UTF-8"),
            ({"x": X, "Y": SETS * 2}, "'Y' should hold 1, 0 and, for what is not annotated, -1 only"),
            ({"x": X, "y": Y, "candidates": SETS * 0.5}, "'candidates' should hold 0 and 1 only"),
            ({"x": X, "y": Y, "candidates": SETS * (Y != 2)[:, None]}, "row 3 of 'candidates' names no candidate"),
            ({"x": X, "y": Y + 1, "candidates": SETS}, "'f.npz' has 4 labels, but a 0/1 matrix with 3 columns"),
            ({"x": X, "y": Y, "label_names": np.array(["a", "b"])}, "'f.npz' names 2 labels but uses 3"),
            ({"x": X, "y": Y, "label_names": np.array(["a", "b", "a"])}, "gives the name 'a' to two labels"),
            (
                {
                    "x": X,
                    "fine": Y,
                    "fine_names": np.array(list("abc")),
                    "coarse_names": np.array(["p"]),
                    "fine_to_coarse": np.array([0, 0, 1]),
                },
                "'fine_to_coarse' should give each of 3 classes one of 1 groups",
            ),
        ],
    )
    def test_arrays_that_do_not_fit(self, arrays, told):
        assert told in refusal(**arrays)


class TestFiles:
    def test_a_file_is_found_from_the_folder(self, tmp_path):
        np.savez(tmp_path / "mine.npz", x=X, y=Y)
        assert len(load_dataset("mine.npz", tmp_path).train) == 6
        assert len(load_dataset(str(tmp_path / "mine.npz"), tmp_path / "elsewhere").train) == 6

    def test_a_training_and_a_test_file(self, tmp_path, monkeypatch):
        names = {"fine_names": np.array(list("abc")), "coarse_names": np.array(["p", "q"]), "fine_to_coarse": [0, 1, 1]}
        folder = tmp_path / "cifar100"
        folder.mkdir()
        pixels = np.zeros((6, 4, 4, 3), dtype=np.uint8)
        np.savez(folder / "cifar100_train_a.npz", x=pixels, fine=Y, coarse=Y > 0, **names)
        np.savez(folder / "cifar100_test.npz", x=pixels[:2] + 255, fine=Y[:2], coarse=Y[:2] > 0, **names)
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
        read = load_dataset("cifar100", tmp_path)
        assert (len(read.train), len(read.test), read.labels) == (6, 2, ("a", "b", "c"))
        assert read.groupings == {"coarse": {"p": ["a"], "q": ["b", "c"]}}
        assert (read.test.x == 1).all()

    def test_a_named_data_set_needs_its_folder(self, tmp_path, monkeypatch):
        for name in [name for name, entry in DATASETS.items() if entry.files]:
            monkeypatch.delenv(DATA_VARIABLE, raising=False)
            unset = f"'{name}' is read from the folder .*{DATA_VARIABLE}, which is not set"
            with pytest.raises(DataError, match=unset):
                load_dataset(name, tmp_path)
            monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
            missing = rf"'{name}', by {DATA_VARIABLE}: the file '{tmp_path}/.*' is not there"
            with pytest.raises(DataError, match=missing):
                load_dataset(name, tmp_path)

    def test_objects_are_refused_and_not_unpickled(self, tmp_path):
        np.savez(tmp_path / "f.npz", x=np.array([Bomb()], dtype=object))
        with pytest.raises(DataError, match=r"f.npz' cannot be read: it holds Python objects; save plain numbers"):
            read_npz(tmp_path / "f.npz", "here")
        assert not Bomb.exploded

    def test_a_pickle_by_another_name_is_refused_and_not_unpickled(self, tmp_path):
        (tmp_path / "f.npz").write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(DataError, match=r"here: '.*f.npz' is not an .npz file"):
            read_npz(tmp_path / "f.npz", "here")
        assert not Bomb.exploded

    def test_what_is_in_the_archive_beside_arrays_is_left_out(self, tmp_path):
        np.savez(tmp_path / "f.npz", x=X)
        with zipfile.ZipFile(tmp_path / "f.npz", "a") as archive:
            archive.writestr("readme.txt", "hello")
        assert list(read_npz(tmp_path / "f.npz", "here")) == ["x"]

    @pytest.mark.parametrize("damage", ["empty", "text", "one array", "cut", "bits"])
    def test_a_file_of_another_form_or_damaged(self, tmp_path, damage):
        path = tmp_path / "f.npz"
        np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(50, 9)), y=np.zeros(50, dtype=int))
        whole = path.read_bytes()
        if damage == "one array":
            with path.open("wb") as file:
                np.save(file, X)
        else:
            bits = whole[:200] + bytes(b ^ 255 for b in whole[200:900]) + whole[900:]
            path.write_bytes({"empty": b"", "text": b"x,y\n1,2\n", "cut": whole[:-30], "bits": bits}[damage])
        with pytest.raises(DataError, match=r"^here: '.*/f.npz' (is not an .npz file|cannot be read)"):
            read_npz(path, "here")

    def test_a_file_that_may_not_be_read(self, tmp_path):
        np.savez(tmp_path / "f.npz", x=X, y=Y)
        (tmp_path / "f.npz").chmod(0)
        was = os.geteuid()
        if was == 0:
            os.seteuid(65534)  # root may read everything
        try:
            with pytest.raises(DataError, match=r"f.npz' cannot be read: Permission denied"):
                load_dataset("f.npz", tmp_path)
        finally:
            os.seteuid(was)

    def test_a_pipe_is_no_file(self, tmp_path):
        os.mkfifo(tmp_path / "f.npz")
        with pytest.raises(DataError, match=r"data.dataset: '.*f.npz' is a device or a pipe, not a file"):
            load_dataset("f.npz", tmp_path)


class Bomb:
    """What a hostile file would hold."""

    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))
