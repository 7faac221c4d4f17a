"""What `check` says of how a group is treated: which rates have too few test rows behind them, or none."""

from dataclasses import replace

import pytest
import torch

from fedaccord.checks.fairness import fairness_findings
from fedaccord.checks.federation import check_experiment_data
from fedaccord.config import check_experiment
from fedaccord.data.site_data import SiteData
from fedaccord.experiment import load_federation
from people import table

NORTH, SOUTH = 0, 1
LOW, HIGH = 0, 2


@pytest.fixture
def people(tmp_path):
    """An experiment of certain labels and groups, and its sites."""
    told = table(tmp_path, sites=2)
    told["data"] |= {"view": {"kind": "exact"}, "sensitive": {"column": "region", "q": 0.0}}
    experiment = check_experiment(told)
    return experiment, load_federation(experiment, tmp_path)


def said(people, sites=None, **change):
    experiment, data = people
    return [
        finding.text for finding in fairness_findings(experiment, replace(data, sites=sites or data.sites, **change))
    ]


def alone(people, **cells):
    """What is said where the sites' test parts hold so many rows of group and label, and the server has no test."""
    rows = [row for (row, many) in cells.values() for _ in range(many)]
    groups, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
    sites = {
        name: on(site, labels[part::2], groups[part::2]) for part, (name, site) in enumerate(people[1].sites.items())
    }
    return said(people, sites, test=None, test_groups=None)


def on(site: SiteData, labels, groups):
    x = site.test.x[:1].expand(len(labels), -1)
    listed = torch.nn.functional.one_hot(groups, 3).bool()
    return replace(site, test=replace(site.test, x=x, target=labels, truth=labels, group=listed, group_truth=groups))


def of(members=30, labelled=30, others=30, others_labelled=30):
    return {
        "a": ((NORTH, LOW), members),
        "b": ((NORTH, HIGH), labelled),
        "c": ((SOUTH, LOW), others),
        "d": ((SOUTH, HIGH), others_labelled),
    }


def test_enough_rows_in_every_cell_are_no_matter(people):
    assert alone(people, **of()) == []


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (of(labelled=19), "have 19 of 'north' with the label 'high';"),
        (of(others_labelled=3), "have 3 of others with the label 'high';"),
        (of(others=0, others_labelled=19), "have 19 of others, 19 of others with the label 'high';"),
        (of(members=4, labelled=4), "have 8 of 'north', 4 of 'north' with the label 'high';"),
    ],
)
def test_every_cell_of_a_rate_is_looked_at(people, cells, told):
    (found,) = alone(people, **cells)
    assert found.startswith("a rate of 'north' against others is too uncertain: all test parts together have ")
    assert told in found


def test_the_servers_test_samples_are_what_global_figures_rest_on(people):
    labels, groups = torch.tensor([HIGH] * 60), torch.tensor([NORTH] * 30 + [SOUTH] * 30)
    few = {name: on(site, labels[:2], groups[:2]) for name, site in people[1].sites.items()}
    listed = torch.nn.functional.one_hot(groups, 3).bool()
    test = torch.zeros(60, 7), labels
    assert said(people, few, test=test, test_groups=(listed, groups)) == []
    assert "all test parts together have 4 of 'north'" in said(people, few, test=None, test_groups=None)[0]
    short = (test[0][:40], labels[:40]), (listed[:40], groups[:40])
    assert "the server's test samples have 10 of others" in said(people, test=short[0], test_groups=short[1])[0]


def test_a_method_without_a_whole_model_at_the_server_is_measured_at_the_sites(people):
    experiment, data = people
    alone = experiment.model_copy(update={"method": {"name": "local", "rounds": 1}})
    few = {name: on(site, torch.tensor([HIGH] * 4), torch.tensor([NORTH] * 4)) for name, site in data.sites.items()}
    assert said(people, few) == []
    assert "all test parts together have 8 of 'north'" in said((alone, data), few)[0]


def test_rows_without_a_label_are_behind_no_rate(people):
    labels = torch.tensor([HIGH] * 60 + [-1] * 60)
    groups = torch.tensor(([NORTH] * 10 + [SOUTH] * 50) * 2)
    sites = {name: on(site, labels, groups) for name, site in [*people[1].sites.items()][:1]}
    assert "have 10 of 'north'," in said(people, sites, test=None, test_groups=None)[0]


def test_candidates_without_truth_measure_nothing(tmp_path):
    told = table(tmp_path, sites=2)
    data = load_federation(check_experiment(told), tmp_path)
    blind = {name: replace(site, test=replace(site.test, truth=None)) for name, site in data.sites.items()}
    found = said((check_experiment(told), data), blind, test=None, test_groups=None)
    assert found == ["how 'north' is treated cannot be measured: test labels are candidates without truth"]
    gone = {name: replace(site, test=replace(site.test, x=site.test.x[:0])) for name, site in data.sites.items()}
    found = said((check_experiment(told), data), gone, test=None, test_groups=None)
    assert found == ["how 'north' is treated cannot be measured: no site has a test part"]


def test_it_is_a_warning_of_the_whole_check(tmp_path):
    told = table(tmp_path)
    calm = check_experiment_data(check_experiment(told), tmp_path)
    assert not any("too uncertain" in finding.text for finding in calm.findings)
    few = told | {"data": {**told["data"], "samples": 150}}
    report = check_experiment_data(check_experiment(few), tmp_path)
    assert sum("of 'north' with the label 'high'" in finding.text for finding in report.findings) == 1
    assert report.exit_code == 1
