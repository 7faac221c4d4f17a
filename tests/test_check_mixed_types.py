"""What `check` says of classes that a labelled server lacks is what training then shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedaccord.checks.federation import check_experiment_data
from fedaccord.checks.method import method_findings, unused_samples
from fedaccord.config import check_experiment
from fedaccord.data.coverage import distinguished
from fedaccord.data.sites import FederationData
from fedaccord.evaluation.metrics import recall
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Coarse
from fedaccord.methods.mixed_types.checks import advice, augmentation_findings
from fedaccord.methods.registry import METHODS, make_recipe
from fedaccord.models.network import predict_logits
from small_federation import INPUTS, SPACE, cloud, exact, federation, pets_or_cattle, site

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {
    "rounds": 3,
    "lr": 0.1,
    "batch": 8,
    "threshold": 0.5,
    "lambda2": 1.0,
    "epochs": 2,
    "server_epochs": 2,
    "warmup": 60,
    "project_on": "all",
}


def without(lacking, samples=24):
    part = cloud(samples, exact(), torch.Generator().manual_seed(5))
    held = part.truth != SPACE.column(lacking)
    return part.x[held], part.truth[held]


def data_of(sites, lacking):
    return FederationData(SPACE, {one.name: one for one in sites}, (INPUTS,), labelled=without(lacking))


def coarse_sites():
    return [site(name, samples=60, view=pets_or_cattle()) for name in "ab"]


def said(sites, lacking, method="fedmt", **settings):
    """Return the warnings, and the notes."""
    data = data_of(sites, lacking)
    found, notes = method_findings(method, METHODS[method].settings(**settings), data)
    idle = unused_samples(method, METHODS[method].settings(**settings), data)
    return [finding.text for finding in found if finding not in idle], [n for n in notes if n not in advice(data)]


TAUGHT = "; only the sites' labels teach them, and pseudo-labels work against it at first"


def recalled(sites, lacking, rounds=3, **settings):
    """Return the recall of a class that the server lacks, after training."""
    test = cloud(90, exact(), torch.Generator().manual_seed(6))
    recipe = make_recipe("fedmt", {**SETTINGS, "rounds": rounds, **settings})
    server = federation(recipe, sites, test=(test.x, test.truth))
    server.labelled = without(lacking)
    server.ready()
    for _ in range(rounds):
        record = play_round(server)
    assert predict_logits(server.load_network(), test.x).isfinite().all()
    return recall(record.evaluation.confusion, SPACE.names)[lacking]


class TestAClassMissingOnTheServer:
    def test_a_coarse_name_that_stands_for_it_alone_teaches_it_where_that_is_known(self):
        assert recalled(coarse_sites(), "cow", correspondence="known") > 0.9
        assert said(coarse_sites(), "cow", correspondence="known") == (
            [],
            [f"the server has no labelled sample of 'cow'{TAUGHT}"],
        )

    @pytest.mark.parametrize("settings", [{}, {"estimator": "em-pool"}])
    def test_it_is_not_learned_where_the_names_are_found_out(self, settings):
        assert recalled(coarse_sites(), "cow", **settings) == 0
        (text,), notes = said(coarse_sites(), "cow", **settings)
        assert notes == []
        assert text == (
            "the server has no labelled sample of 'cow'; correspondences are estimated from its samples, so "
            'the model cannot learn them; if they are known, set method.correspondence = "known"'
        )

    def test_a_class_that_shares_its_coarse_name_is_not_learned_at_all(self):
        assert recalled(coarse_sites(), "dog", correspondence="known") == 0
        (text,), _ = said(coarse_sites(), "dog", correspondence="known")
        assert text.endswith("'dog'; no other label teaches them, so the model cannot learn them")

    @pytest.mark.parametrize("correspondence", ["known", "estimated"])
    def test_a_site_that_names_it_exactly_teaches_it(self, correspondence):
        sites = [*coarse_sites(), site("e", samples=60, view=exact())]
        assert recalled(sites, "dog", 6, correspondence=correspondence, lambda2=0.0625) > 0.8
        found, notes = said(sites, "dog", correspondence=correspondence)
        assert found == []
        assert notes == [f"the server has no labelled sample of 'dog'{TAUGHT}"]

    @pytest.mark.parametrize("method", ["semifl", "single", "fedrep", "fedtrans"])
    def test_other_methods_learn_classes_from_the_server_alone(self, method):
        sites = [*coarse_sites(), site("e", samples=60, view=exact())]
        (text,), notes = said(sites, "cow", method)
        assert "the server has no labelled sample of 'cow'; no other label teaches" in text
        assert notes == []

    def test_pfedmo_learns_from_its_sites_what_the_public_samples_lack(self):
        (note,) = said(coarse_sites(), "cow", "pfedmo")[1]
        assert note.startswith("the server has no labelled sample of 'cow'; only the sites' labels teach them")
        (text,), notes = said(coarse_sites(), "cow", "representation")
        assert "no other label teaches them" in text
        assert notes == []

    def test_methods_that_do_not_look_at_the_server_have_none_to_miss(self):
        assert said(coarse_sites(), "cow", "fedavg") == ([], [])


def test_labelled_samples_are_told_to_be_idle_by_the_methods_that_do_not_need_them():
    data = data_of(coarse_sites(), "cow")
    found = {
        method: [finding.text for finding in unused_samples(method, METHODS[method].settings(), data)]
        for method in METHODS
    }
    users = {"accord", "fedmt", "fedmt+", "semifl", "fedrep", "fedtrans", "single", "pfedmo", "representation"}
    assert found == {
        method: [] if method in users else [f"the method '{method}' does not use the server's labelled samples"]
        for method in METHODS
    }


def test_names_of_several_sites_may_tell_a_class_apart_together():
    views = {"x": {"ab": ["cat", "dog"], "c": ["cow"]}, "y": {"a": ["cat"], "bc": ["dog", "cow"]}}
    sites = [site(name, view=Coarse(SPACE, groups)) for name, groups in views.items()]
    assert distinguished(data_of(sites, "dog")) == {"cat", "dog", "cow"}
    assert distinguished(data_of(sites[:1], "dog")) == {"cow"}
    assert distinguished(data_of(sites, "dog"), coarse=False) == set()


def test_the_note_on_what_only_the_server_separates_names_what_it_lacks():
    notes = advice(data_of(coarse_sites(), "dog"))
    assert "no coarse label separates 'cat', 'dog'; only the server's samples tell them apart, none of 'dog'" in notes
    assert not any("at least 0" in note for note in notes)


@pytest.mark.parametrize(("method", "refused"), [("semifl", 0), ("single", 0), ("fedmt", 1)])
def test_sites_without_labels_are_sound_for_methods_that_need_none(tmp_path, method, refused):
    table = {
        "data": {
            "dataset": "digits",
            "samples": 300,
            "partition": {"kind": "iid", "sites": 2},
            "view": {"kind": "unlabelled"},
        },
        "server": {"labelled": {"per_class": 3}},
        "method": {"name": method},
    }
    report = check_experiment_data(check_experiment(table), tmp_path)
    errors = [finding.text for finding in report.findings if finding.level == "error"]
    assert errors == ["no site that may train has labelled samples"] * refused


def test_names_in_another_order_are_told():
    """They are no group: counts and matrices are exchanged by place."""
    other = Coarse(SPACE, dict(reversed(list(pets_or_cattle().groups.items()))))
    mixed = [site("a", view=pets_or_cattle()), site("b", view=pets_or_cattle()), site("x", view=other)]
    told = [note for note in advice(data_of(mixed, "cow")) if "different orders" in note]
    assert len(told) == 1
    assert told[0].startswith("sites 'a', 'x' list the same coarse names")
    assert not [note for note in advice(data_of(coarse_sites(), "cow")) if "different orders" in note]


TEXTS = torch.nn.functional.normalize(torch.rand(60, INPUTS, generator=torch.Generator().manual_seed(0)), dim=1)
TEXTS[3] = 0.0  # an empty one


def with_inputs(x):
    data = data_of(coarse_sites(), "cow")
    for name, kept in data.sites.items():
        data.sites[name] = replace(kept, train=replace(kept.train, x=x))
    return data


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (TEXTS, 'set method.augment = "words"'),
        (torch.eye(INPUTS).repeat(15, 1), None),  # a column of categories
        (torch.randn(60, INPUTS), None),
        (torch.rand(60, 3, 4, 4) * 2 - 1, None),
        (torch.rand(60, 3, 4, 4) * 255, "strong augmentation expects images in -1..1"),
    ],
)
def test_samples_that_would_be_changed_beyond_recognition_are_told(x, told):
    for method in ("fedmt", "fedmt+", "semifl"):
        found = augmentation_findings(with_inputs(x), METHODS[method].settings())
        assert [told in finding.text for finding in found] == ([True] if told else [])


@pytest.mark.parametrize(
    ("method", "settings", "warned"),
    [
        ("fedmt", {"augment": "words"}, False),
        ("fedmt", {"lambda2": 0.0, "project_on": "all"}, False),
        ("single", {}, False),
        ("single", {"server_augment": "strong"}, True),
    ],
)
def test_only_samples_that_are_changed_strongly(method, settings, warned):
    assert bool(augmentation_findings(with_inputs(TEXTS), METHODS[method].settings(**settings))) == warned
