"""Who knows which label, and which labels some chain of sites compares."""

from fedaccord.data.coverage import connected_groups, coverage_matrix, labels_without_site
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Coarse, Exact, Tags, Unlabelled

SPACE = LabelSpace(["a", "b", "c", "d"])


def exact(**known):
    return {site: Exact(SPACE, list(labels)) for site, labels in known.items()}


def test_the_coverage_matrix_has_a_row_for_each_site_in_order():
    views = {
        "exact": Exact(SPACE, ["d", "a"]),
        "all": Exact(SPACE),
        "sets": Candidates(SPACE, ["b", "c"]),
        "coarse": Coarse(SPACE, {"low": ["a", "b"], "high": ["c"]}),
        "tags": Tags(SPACE, ["c"]),
        "none": Unlabelled(SPACE),
    }
    assert coverage_matrix(views).int().tolist() == [
        [1, 0, 0, 1],
        [1, 1, 1, 1],
        [0, 1, 1, 0],
        [1, 1, 1, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]


def test_labels_that_no_site_teaches_are_named():
    assert labels_without_site(exact(north="ab", south="bc"), SPACE) == ["d"]
    assert labels_without_site({"north": Unlabelled(SPACE)}, SPACE) == ["a", "b", "c", "d"]
    assert labels_without_site(exact(north="ab", south="cd"), SPACE) == []


def test_a_chain_of_sites_connects_its_ends():
    assert connected_groups(exact(one="ab", two="bc", three="cd"), SPACE) == [("a", "b", "c", "d")]
    # The link may come last, and in any order of labels.
    assert connected_groups(exact(one="cd", two="ab", three="da"), SPACE) == [("a", "b", "c", "d")]


def test_two_islands_stay_apart():
    assert connected_groups(exact(north="ac", south="bd"), SPACE) == [("a", "c"), ("b", "d")]


def test_an_unlabelled_site_builds_no_bridge():
    views = exact(north="ac", south="bd") | {"sea": Unlabelled(SPACE)}
    assert connected_groups(views, SPACE) == [("a", "c"), ("b", "d")]


def test_a_coarse_site_connects_what_it_sees():
    views = {"coarse": Coarse(SPACE, {"low": ["a", "b"], "high": ["c"]})}
    assert connected_groups(views, SPACE) == [("a", "b", "c"), ("d",)]


def test_tags_do_not_connect():
    assert connected_groups({"tags": Tags(SPACE)}, SPACE) == [("a",), ("b",), ("c",), ("d",)]
    assert connected_groups({"tags": Tags(SPACE)} | exact(north="ab"), SPACE) == [("a", "b"), ("c",), ("d",)]


def test_a_site_of_a_single_label_compares_nothing():
    assert connected_groups(exact(one="a", two="b", three="cd"), SPACE) == [("a",), ("b",), ("c", "d")]


def test_a_site_that_knows_all_connects_all():
    assert connected_groups(exact(north="ac", south="bd") | {"hub": Exact(SPACE)}, SPACE) == [("a", "b", "c", "d")]
