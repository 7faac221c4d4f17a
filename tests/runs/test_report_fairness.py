"""What the report says of whom a defence left out is what the rounds' figures say, honest and hostile sites apart."""

import pytest
from test_report import Page, federation, make_run, summary

from fedaccord.runs.report import write_report

VIEWS = {site: ({"kind": "exact"}, []) for site in ("a", "b", "c", "d")}
OUT = {"a": (1, 3, 4), "b": (2,), "c": (), "d": (1, 2, 3, 4)}  # rounds of four in which a site was left out
TRUST = {"a": 0.123, "b": 0.456, "c": 0.876, "d": 0.012}  # in the last round


def rounds(confidence=True):
    for at in (1, 2, 3, 4):
        figures = {f"excluded/{site}": float(at in out) for site, out in OUT.items()}
        figures |= {f"score/{site}": 0.1 * at for site in OUT}
        if confidence:
            figures |= {f"confidence/{site}": trust if at == 4 else 0.5 for site, trust in TRUST.items()}
        figures["excluded"] = 0.5  # of the round, of no site
        yield {"round": at, "scope": "round", "asked": list(OUT), "replied": 4, "dropped": [], "figures": figures}


def page(folder, hostile, **kind):
    told = summary(name="defended", hostile=hostile, rounds=4)
    return Page(write_report(make_run(folder, list(rounds(**kind)), told, federation(VIEWS)), None))


def test_honest_and_hostile_sites_have_their_own_shares(tmp_path):
    """Honest: b once in eight rounds of b and c. Hostile: a and d seven times in eight."""
    shown = page(tmp_path, ["a", "d"])
    said = shown.sections["Whom the defence left out"]
    assert "Honest sites were left out of 12.5% of their rounds, hostile sites of 87.5%." in said
    assert "Hostile sites are drawn in orange." in said
    head = shown.sections[""]
    assert "Honest sites left out" in head
    assert "12.5%" in head
    assert "87.5%" not in head


def test_every_site_has_its_kind_its_rounds_and_its_confidence(tmp_path):
    assert page(tmp_path, ["a", "d"]).tables["Whom the defence left out"] == [
        ["Site", "In truth", "Left out", "Rounds", "Confidence, last"],
        ["a", "hostile", "75.0%", "1, 3–4", "0.123"],
        ["b", "honest", "25.0%", "2", "0.456"],
        ["c", "honest", "0.0%", "–", "0.876"],
        ["d", "hostile", "100.0%", "1–4", "0.012"],
    ]


def test_hostile_sites_are_drawn_apart(tmp_path):
    drawn = {line["name"]: line["line"]["color"] for line in page(tmp_path, ["a", "d"]).figures["defence"]["data"]}
    assert drawn["a"] == drawn["d"] != drawn["b"] == drawn["c"]


def test_where_nobody_knows_who_is_hostile_all_sites_are_counted_together(tmp_path):
    shown = page(tmp_path, [])
    said = shown.sections["Whom the defence left out"]
    assert "Sites were left out of 50.0% of their rounds. It is not known which of them were honest" in said
    assert "Honest" not in said
    assert [row[1] for row in shown.tables["Whom the defence left out"][1:]] == ["–"] * 4


def test_a_defence_without_confidence_shows_scores(tmp_path):
    shown = page(tmp_path, ["a"], confidence=False)
    assert [row[4] for row in shown.tables["Whom the defence left out"][1:]] == ["–"] * 4
    assert "Score over the rounds" in shown.sections["Whom the defence left out"]
    assert shown.figures["defence"]["data"][0]["y"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
