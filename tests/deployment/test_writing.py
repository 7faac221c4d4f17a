"""What `deploy` writes where names are awkward, labels are others', or it is cut short."""

from __future__ import annotations

from fedaccord.config import check_experiment
from fedaccord.deployment.writing import Address, write_deployment
from people import table


def deploy(told, base):
    return write_deployment(check_experiment(told), base, base / "d", Address("localhost", 9443), 9444)


def test_the_label_whose_fairness_is_measured_is_told_only_to_a_site_that_names_it(tmp_path):
    told = table(tmp_path, sites=2)
    told["data"] |= {"names": ["a", "b"], "view": {"kind": "exact"}, "views": {"a": {"known": ["low", "medium"]}}}
    deploy(told | {"method": {"name": "fedavg", "rounds": 1}}, tmp_path)
    held = [path.read_text() for path in (tmp_path / "d/sites/a").iterdir() if path.suffix in (".toml", ".json")]
    assert len(held) == 3
    assert not [text for text in held if "high" in text]
    assert 'label = "high"' in (tmp_path / "d/server/config.toml").read_text()
