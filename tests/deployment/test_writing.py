"""What `deploy` writes where names are awkward, labels are others', or it is cut short."""

from __future__ import annotations

import stat

import pytest

from fedaccord.config import check_experiment
from fedaccord.deployment import certificates, writing
from fedaccord.deployment.certificates import make_authority, make_certificate, valid_until
from fedaccord.deployment.writing import Address, GivenCertificate, _folder_names, write_deployment
from fedaccord.errors import UserError
from people import table


def deploy(told, base, own=None):
    return write_deployment(check_experiment(told), base, base / "d", Address("localhost", 9443), 9444, own)


@pytest.fixture
def small(tmp_path):
    return table(tmp_path, sites=2)


@pytest.mark.parametrize(
    ("sites", "places"),
    [
        (["site-0001", "the south"], ["site-0001", "site-0002"]),
        (["a b", "c d", "SITE-0000"], ["site-0001", "site-0002"]),
        (["A", "a", "site-0000"], ["site-0000", "site-0001", "site-0002"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_every_site_has_a_folder_of_its_own(sites, places):
    assert list(_folder_names(sites).values())[: len(places)] == places
    assert len({place.lower() for place in _folder_names(sites).values()}) == len(sites)


def test_nobody_else_comes_near_samples_while_they_are_written(small, tmp_path, monkeypatch):
    seen = []

    def cut(path, *_, **__):
        seen.extend(stat.S_IMODE(place.stat().st_mode) for place in (path, tmp_path / "d/server"))
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write_site_folder", cut)
    with pytest.raises(KeyboardInterrupt):
        deploy(small, tmp_path)
    assert seen == [0o700, 0o700]


class TestLifetimes:
    def own(self, folder, certificate, key):
        paths = [folder / name for name in ("ca.crt", "s.crt", "s.key")]
        for path, content in zip(paths, (make_authority("mine").pem(), certificate, key), strict=True):
            path.write_bytes(content)
        return GivenCertificate(*paths)

    def test_the_readme_says_when_the_given_certificate_ends(self, small, tmp_path, monkeypatch):
        monkeypatch.setattr(certificates, "_DAYS", 30)
        own = self.own(tmp_path, *make_certificate(make_authority("mine"), ["localhost"]))
        monkeypatch.undo()
        deploy(small, tmp_path, own)
        readme = (tmp_path / "d/README.md").read_text()
        assert f"Certificates are valid until {valid_until(own.certificate)}." in readme
        assert valid_until(own.certificate) < valid_until(tmp_path / "d/server/tls/link.crt")
        assert "loginctl enable-linger" in readme

    def test_what_is_given_must_be_a_certificate(self, small, tmp_path):
        with pytest.raises(UserError, match=r"s\.crt' is not a certificate in PEM format"):
            deploy(small, tmp_path, self.own(tmp_path, b"hello", b"hello"))
        assert not (tmp_path / "d").exists()


def test_the_label_whose_fairness_is_measured_is_told_only_to_a_site_that_names_it(tmp_path):
    told = table(tmp_path, sites=2)
    told["data"] |= {"names": ["a", "b"], "view": {"kind": "exact"}, "views": {"a": {"known": ["low", "medium"]}}}
    deploy(told | {"method": {"name": "fedavg", "rounds": 1}}, tmp_path)
    held = [path.read_text() for path in (tmp_path / "d/sites/a").iterdir() if path.suffix in (".toml", ".json")]
    assert len(held) == 3
    assert not [text for text in held if "high" in text]
    assert 'label = "high"' in (tmp_path / "d/server/config.toml").read_text()


def test_words_of_a_site_are_in_its_own_folder_only(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("age,dx\n" + "40,leicht\n60,grave\n" * 4)
    own = {"label": "dx", "synonyms": {"mild": ["leicht"]}}
    sites = [{"name": name, "data": f"{name}.csv", **own} for name in "ab"]
    sites[1]["synonyms"] = {"mild": ["leicht", "secret word"]}
    classes = {"classes": ["mild", "grave"], "synonyms": {"grave": ["Grave of all"]}}
    deploy({"labels": classes, "sites": sites, "method": {"name": "fedavg", "rounds": 1}}, tmp_path)
    written = [path for path in (tmp_path / "d").rglob("*") if path.is_file()]
    holders = {path.relative_to(tmp_path / "d").as_posix() for path in written if b"secret word" in path.read_bytes()}
    assert holders == {"sites/b/site.toml"}
    assert not [path for path in written if b"leicht" in path.read_bytes() and path.name != "site.toml"]
    assert not [path for path in (tmp_path / "d/sites").rglob("*.toml") if b"of all" in path.read_bytes()]


def test_label_columns_and_formats_are_in_the_sites_folders_only(tmp_path):
    """The 0/1 columns of tags are words for labels."""
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("age;Husten;Fieber\n" + "40;1;0\n60;0;1\n" * 4)
    read = {"separator": ";", "encoding": "cp1252"}
    tags = {"label": ["Husten", "Fieber"], "view": {"kind": "tags"}, "read": read}
    sites = [{"name": name, "data": f"{name}.csv", **tags} for name in "ab"]
    labels = {"synonyms": {"cough": ["Husten"], "fever": ["Fieber"]}}
    for site in sites:
        site["synonyms"] = labels["synonyms"]
    deploy({"sites": sites, "method": {"name": "fedavg", "rounds": 1}}, tmp_path)
    server = [path for path in (tmp_path / "d/server").rglob("*") if path.is_file()]
    assert not [path for path in server if b"Husten" in path.read_bytes() or b"cp1252" in path.read_bytes()]
    assert '"Husten"' in (tmp_path / "d/sites/a/site.toml").read_text()
    assert 'encoding = "cp1252"' in (tmp_path / "d/sites/a/site.toml").read_text()
