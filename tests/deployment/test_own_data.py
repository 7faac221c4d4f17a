"""`fedaccord deploy --site`: a site puts its own samples into its folder."""

from __future__ import annotations

import numpy as np
import pytest

from command_line import command, write
from fedaccord.engines.flower.site_folder import SiteFolder


class TestOneSiteAlone:
    """The coordinator deploys with stand-ins of a few rows; a site then puts in its own, which nobody else has read."""

    TEXT = """
labels.classes = ["well", "ill"]
features.numbers = { age = [50, 10] }
features.categories = { sex = ["f", "m"] }
model.hidden = [4]
[[sites]]
name = "a"
data = "a.csv"
label = "state"
[[sites]]
name = "b"
data = "b.csv"
label = "state"
"""

    @pytest.fixture
    def deployed(self, tmp_path):
        for name in "ab":
            (tmp_path / f"{name}.csv").write_text("age,sex,state\n" + "40,f,well\n60,m,ill\n" * 3)
        assert command("deploy", write(tmp_path, self.TEXT), "d", cwd=tmp_path).code == 0
        (tmp_path / "b.csv").unlink()
        (tmp_path / "a.csv").write_text("age,sex,state\n" + "41,f,well\n61,m,ill\n" * 50)
        return tmp_path / "d/sites/a"

    def test_its_own_samples_take_the_place_of_the_stand_ins(self, deployed, tmp_path):
        before = SiteFolder.open(deployed)
        done = command("deploy", "experiment.toml", deployed, "--site", "a", cwd=tmp_path)
        assert done.code == 0, done.err
        site = SiteFolder.open(deployed).build_host().sites["a"]
        assert (len(site.train), len(site.test)) == (80, 20)
        assert site.train.x[:, 0].unique().tolist() == pytest.approx([-0.9, 1.1])
        assert SiteFolder.open(deployed).deployment == before.deployment

    def test_with_words_of_features(self, tmp_path):
        """The federation's synonyms of features are in the site's copy of the experiment and in the server's plan."""
        text = self.TEXT.replace("model.hidden", 'features.synonyms = { sex = { f = ["female"] } }\nmodel.hidden')
        for name in "ab":
            (tmp_path / f"{name}.csv").write_text("age,sex,state\n" + "40,female,well\n60,m,ill\n" * 3)
        assert command("deploy", write(tmp_path, text), "d", cwd=tmp_path).code == 0
        site = SiteFolder.open(tmp_path / "d/sites/a").build_host().sites["a"]
        assert site.train.x[:, 2:].sum(1).tolist() == [1.0] * len(site.train)
        assert '"female": "f"' in (tmp_path / "d/server/known.json").read_text()
        assert command("deploy", "experiment.toml", tmp_path / "d/sites/a", "--site", "a", cwd=tmp_path).code == 0

    def test_with_its_own_words_for_labels(self, deployed, tmp_path):
        """Nobody else sees them: they are in the copy of the experiment file that the site keeps."""
        (tmp_path / "a.csv").write_text("age,sex,state\n" + "41,f,gesund\n61,m,ill\n" * 50)
        own = (
            (tmp_path / "experiment.toml")
            .read_text()
            .replace('data = "a.csv"', 'data = "a.csv"\nsynonyms = { well = ["gesund"] }')
        )
        done = command("deploy", write(tmp_path, own), deployed, "--site", "a", cwd=tmp_path)
        assert done.code == 0, done.err
        assert SiteFolder.open(deployed).build_host().sites["a"].train.target.unique().tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ("method.lr=0.5", "differ from those the folder was written for"),
            ('features.categories={ sex = ["f", "m", "x"] }', "differ from those the folder was written for"),
            ("name=other", None),
        ],
    )
    def test_it_must_be_the_same_experiment(self, deployed, tmp_path, change, said):
        done = command("deploy", "experiment.toml", deployed, "--site", "a", "--set", change, cwd=tmp_path)
        assert (done.code == 0) == (said is None)
        assert said is None or said in done.err

    def test_it_cannot_know_the_moments_of_the_federation(self, deployed, tmp_path):
        change = 'features.numbers=["age"]'
        done = command("deploy", "experiment.toml", deployed, "--site", "a", "--set", change, cwd=tmp_path)
        assert done.code == 2
        assert "features.numbers should give mean and deviation of 'age': a site alone cannot know" in done.err

    def test_columns_must_be_encoded_as_at_the_other_sites(self, tmp_path):
        text = self.TEXT.replace('{ sex = ["f", "m"] }', '["sex"]')  # words are then those of the rows
        for name in "ab":
            (tmp_path / f"{name}.csv").write_text("age,sex,state\n" + "40,f,well\n60,m,ill\n" * 3)
        assert command("deploy", write(tmp_path, text), "d", cwd=tmp_path).code == 0
        (tmp_path / "a.csv").write_text("age,sex,state\n" + "41,f,well\n65,x,ill\n" * 50)
        done = command("deploy", "experiment.toml", "d/sites/a", "--site", "a", cwd=tmp_path)
        assert done.code == 2
        assert "the columns 'sex' would be encoded differently from the other sites; give moments" in done.err

    def test_another_sites_folder(self, deployed, tmp_path):
        done = command("deploy", "experiment.toml", deployed.parent / "b", "--site", "a", cwd=tmp_path)
        assert "is the folder of site 'b', not of 'a'" in done.err

    def test_a_site_that_is_none(self, deployed, tmp_path):
        assert "did you mean" in command("deploy", "experiment.toml", deployed, "--site", "aa", cwd=tmp_path).err or (
            "known: a, b" in command("deploy", "experiment.toml", deployed, "--site", "zz", cwd=tmp_path).err
        )


def test_a_site_alone_standardises_its_arrays_by_its_own_moments_or_not_at_all(tmp_path):
    text, rng = 'labels.classes = ["well", "ill"]\nmodel.hidden = [4]\n', np.random.default_rng(0)
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(7, 1, (40, 3)), y=["well", "ill"] * 20)
        text += f'[[sites]]\nname = "{name}"\ndata = "{name}.npz"\n'
    path = write(tmp_path, text)
    assert command("deploy", path, "d", cwd=tmp_path).code == 0
    folder, means = tmp_path / "d/sites/a", {}
    for way in ("federation", "site", "none"):
        done = command("deploy", path, folder, "--site", "a", "--set", f"features.standardise={way}", cwd=tmp_path)
        assert ("a site alone cannot standardise its arrays" in done.err) == (way == "federation") == (done.code != 0)
        means[way] = float(SiteFolder.open(folder).build_host().sites["a"].train.x.mean())
    assert (means["site"], means["none"]) == (pytest.approx(0, abs=1e-5), pytest.approx(7, abs=0.3))
