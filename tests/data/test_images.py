"""Sites that bring folders of images."""

import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedaccord.config import parse_experiment
from fedaccord.errors import ConfigError, DataError
from fedaccord.experiment import load_federation

TEXT = """
[labels]
classes = ["cat", "dog"]

[features]
image_size = 4

[[sites]]
name = "north"
data = "north/"
label = "what"
test = 0
"""
UNLABELLED = '\n[[sites]]\nname = "south"\ndata = "south"\nview = { kind = "unlabelled" }\ntest = 0\n'


def picture(path, colour, size=(6, 8), mode="RGB"):
    path.parent.mkdir(exist_ok=True)
    Image.new(mode, size, colour).save(path)


def folder(root, labels="file,what\na.png,cat\nb.png,dog\n"):
    picture(root / "a.png", (255, 0, 0))
    picture(root / "b.png", 255, mode="L")
    (root / "labels.csv").write_text(labels)


def load(root, text=TEXT):
    return load_federation(parse_experiment(text), root)


def test_images_become_pixels_in_their_place(tmp_path):
    folder(tmp_path / "north", "what,file\ndog,b.png\ncat,a.png\n,a.png\n")
    data = load(tmp_path)
    samples = data.sites["north"].train
    assert data.input_shape == (3, 4, 4)
    assert samples.target.tolist() == [1, 0, -1]
    assert samples.x.dtype == torch.float32
    assert torch.equal(samples.x[0], torch.ones(3, 4, 4))  # white
    assert samples.x[1].mean((1, 2)).tolist() == [1, -1, -1]  # red
    assert data.features is None


def test_size_and_place_of_pixels(tmp_path):
    (tmp_path / "north").mkdir()
    pixels = np.zeros((4, 4), dtype=np.uint8)
    pixels[0, 3] = 255
    Image.fromarray(pixels).save(tmp_path / "north" / "a.png")
    (tmp_path / "north" / "labels.csv").write_text("file,what\na.png,cat\n")
    data = load(tmp_path, TEXT.replace("image_size = 4", "image_size = 4\nimage_colour = false"))
    assert data.input_shape == (1, 4, 4)
    assert (data.sites["north"].train.x[0, 0].numpy() == pixels / 127.5 - 1).all()


def test_an_unlabelled_folder_needs_no_label_file(tmp_path):
    folder(tmp_path / "north")
    picture(tmp_path / "south" / "x.jpg", (0, 0, 0))
    picture(tmp_path / "south" / "y.png", (255, 255, 255))
    (tmp_path / "south" / "notes.txt").write_text("no image")
    samples = load(tmp_path, TEXT + UNLABELLED).sites["south"].train
    assert samples.x.mean((1, 2, 3)).round().tolist() == [-1, 1]
    assert samples.target.tolist() == [-1, -1]


def test_the_servers_own_images(tmp_path):
    folder(tmp_path / "north")
    folder(tmp_path / "held", "file,what\nb.png,cat\nb.png,\n")
    data = load(tmp_path, '[server]\ntest = "held"\n' + TEXT)
    assert data.test[0].shape == (1, 3, 4, 4)
    assert data.test[1].tolist() == [0]


def test_every_wrong_cell_is_named(tmp_path):
    folder(tmp_path / "north", "file,what\na.png,cta\ngone.png,cat\nlabels.csv,dog\n../secret.png,dog\n")
    picture(tmp_path / "secret.png", (0, 0, 0))
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        "4 cells cannot be read: north/labels.csv, line 3, column 'file': 'gone.png' is not there; "
        "north/labels.csv, line 4, column 'file': 'labels.csv' cannot be read as an image; "
        "north/labels.csv, line 5, column 'file': '../secret.png' is outside of the folder; "
        "north/labels.csv, line 2, column 'what': 'cta' is not one of the labels; did you mean 'cat'?"
    )


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"site 'north': the folder '.*north' is not there"):
        load(tmp_path)
    (tmp_path / "north").mkdir()
    with pytest.raises(DataError, match=r"site 'north': the file '.*labels.csv' is not there"):
        load(tmp_path)
    folder(tmp_path / "north", "picture,what\na.png,cat\n")
    with pytest.raises(DataError, match=r"'north/labels.csv' has no column 'file'"):
        load(tmp_path)
    folder(tmp_path / "north")
    (tmp_path / "south").mkdir()
    with pytest.raises(DataError, match=r"site 'south': the folder '.*south' holds no images"):
        load(tmp_path, TEXT + UNLABELLED)


def test_without_pillow(tmp_path, monkeypatch):
    folder(tmp_path / "north")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"Pillow, which is not installed; install it with pip install 'fedaccord\["):
        load(tmp_path)


class TestClassFolders:
    """Folders of images whose subfolders are the labels."""

    TEXT = TEXT.replace('label = "what"\n', "")

    def images(self, root, **folders):
        for name, files in folders.items():
            for file in files:
                (root / name).mkdir(parents=True, exist_ok=True)
                picture(root / name / file, (255, 255, 255) if name == "cat" else (0, 0, 0))

    def test_subfolders_are_labels(self, tmp_path):
        self.images(tmp_path / "north", cat=["b.png", "a.jpg"], dog=["a.png"])
        (tmp_path / "north/cat/notes.txt").write_text("no image")
        (tmp_path / "north/.cache").mkdir()
        picture(tmp_path / "north/.cache/a.png", (0, 0, 0))
        (tmp_path / "north/dog/more").mkdir()
        picture(tmp_path / "north/dog/more/z.png", (0, 0, 0))
        samples = load(tmp_path, self.TEXT).sites["north"].train
        assert samples.target.tolist() == [0, 0, 1, 1]
        assert samples.x.mean((1, 2, 3)).round().tolist() == [1, 1, -1, -1]

    def test_the_classes_and_the_label_column_may_be_left_out_or_given(self, tmp_path):
        self.images(tmp_path / "north", cat=["a.png"], dog=["a.png"])
        without_classes = self.TEXT[self.TEXT.index("[features]") :]
        assert load(tmp_path, without_classes).space.names == ("cat", "dog")
        assert load(tmp_path, TEXT).sites["north"].train.target.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("view", "known"),
        [
            ('{ kind = "exact", known = ["cat", "dog"] }', ("cat", "dog")),
            ('{ kind = "exact", known = "own" }', ("cat",)),
        ],
    )
    def test_known_labels(self, tmp_path, view, known):
        self.images(tmp_path / "north", cat=["a.png", "b.png"])
        assert load(tmp_path, self.TEXT + f"view = {view}\n").sites["north"].view.known == known

    def test_coarse_names(self, tmp_path):
        self.images(tmp_path / "north", pet=["a.png"], none=["b.png"])
        view = 'view = { kind = "coarse", correspondence = { pet = ["cat", "dog"], none = ["fox"] } }\n'
        text = self.TEXT.replace('"dog"]', '"dog", "fox"]') + view
        site = load(tmp_path, text).sites["north"]
        assert [site.view.answers[t] for t in site.train.target] == ["none", "pet"]

    def test_a_share_is_the_test_and_the_server_has_class_folders_too(self, tmp_path):
        self.images(tmp_path / "north", cat=[f"{n}.png" for n in range(6)], dog=[f"{n}.png" for n in range(4)])
        self.images(tmp_path / "held", dog=["a.png"], cat=["a.png"])
        data = load(tmp_path, '[server]\ntest = "held"\n' + self.TEXT.replace("test = 0", "test = 0.2"))
        assert (len(data.sites["north"].train), len(data.sites["north"].test)) == (8, 2)
        assert data.test[1].tolist() == [0, 1]
        folder(tmp_path / "north")  # a label file goes before class folders
        data = load(tmp_path, '[server]\ntest = "held"\n' + TEXT)
        assert (len(data.sites["north"].train), data.test[1].tolist()) == (2, [0, 1])

    def test_unlabelled_images_in_subfolders(self, tmp_path):
        self.images(tmp_path / "north", cat=["a.png"], dog=["a.png"])
        self.images(tmp_path / "south", ward=["x.png", "y.png"])
        picture(tmp_path / "south" / "z.png", (0, 0, 0))
        assert len(load(tmp_path, self.TEXT + UNLABELLED).sites["south"].train) == 3

    def test_other_layouts_are_named(self, tmp_path):
        def message():
            with pytest.raises(DataError) as caught:
                load(tmp_path, self.TEXT)
            return str(caught.value).replace(f"{tmp_path}/", "")

        self.images(tmp_path / "north", cat=["a.png"])
        (tmp_path / "north/dog").mkdir()
        assert message() == "site 'north': 'dog' in 'north' holds no images; remove it, or add images of the class"
        picture(tmp_path / "north/z.png", (0, 0, 0))
        assert message() == (
            "site 'north': 'north' has images in folders of classes and 1 beside them, such as 'z.png'; "
            "labels are in labels.csv, or each class has a folder of its images"
        )
        shutil.rmtree(tmp_path / "north")
        self.images(tmp_path / "north/train", cat=["a.png"])
        assert message() == (
            "site 'north': 'north' is divided into 'train', which are not classes; "
            'name the folder of the class folders, as in data = "north/train"'
        )

    def test_a_class_that_the_federation_lacks(self, tmp_path):
        self.images(tmp_path / "north", cat=["a.png"], fox=["a.png"])
        with pytest.raises(DataError, match=r"north/, image 2, column 'folder': 'fox' is not one of the labels"):
            load(tmp_path, self.TEXT)
