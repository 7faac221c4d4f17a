"""Confusion counts of many answers are cells: in messages, in memory and in files."""

import json

import pytest
import torch

from fedaccord.evaluation.confusion import class_sums, describe, received, to_send
from fedaccord.evaluation.metrics import confusion, recall
from fedaccord.federation.round import Evaluation, RoundRecord
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact
from fedaccord.messages.message import Message, encoded_size
from fedaccord.runs import report_figures
from fedaccord.runs.reading import Line
from fedaccord.runs.records import round_lines

TRUTH, PREDICTED = torch.tensor([0, 0, 0, 7, 7, -1]), torch.tensor([0, 0, 1, 7, 149, 3])


def test_few_answers_are_sent_as_they_are():
    counts = confusion(TRUTH, PREDICTED.clamp(max=99), 100)
    assert to_send(counts) is counts
    assert received(counts, 100) is counts
    assert describe(counts) == {"counts": counts.tolist()}


def test_many_answers_are_sent_as_cells_and_come_back():
    counts = confusion(TRUTH, PREDICTED, 150)
    sent = to_send(counts)
    assert sent.tolist() == [[0, 0, 2], [0, 1, 1], [7, 7, 1], [7, 149, 1]]
    back = received(sent, 150)
    assert torch.equal(back.to_dense(), counts)
    assert class_sums(back) == class_sums(counts)
    assert describe(back) == describe(counts) == {"cells": sent.tolist()}
    names = [str(name) for name in range(150)]
    assert recall(back, names) == recall(counts, names)
    assert recall(back, names)["0"] == pytest.approx(2 / 3)


def test_a_site_of_2000_labels_sends_kilobytes_not_megabytes():
    generator = torch.Generator().manual_seed(0)
    truth, predicted = torch.randint(2000, (2, 300), generator=generator)
    counts = confusion(truth, predicted, 2000)
    assert encoded_size(Message({"confusion": counts})) > 32_000_000
    assert encoded_size(Message({"confusion": to_send(counts)})) < 8_000


def test_the_recall_of_many_classes_is_added_up_over_sites():
    space = LabelSpace([f"label {number}" for number in range(150)])
    counts = {site: received(to_send(confusion(TRUTH, PREDICTED, 150)), 150) for site in ("a", "b")}
    shown = Evaluation(sites={site: {"accuracy": 0.6} for site in counts}, site_confusions=counts)
    views = {site: Exact(space) for site in counts}
    (line,) = [x for x in round_lines(RoundRecord(1, evaluation=shown), space, views) if x["scope"] == "classes"]
    assert line["samples"]["label 0"] == 6
    assert line["recall"]["label 7"] == 0.5
    json.dumps(line, allow_nan=False)


def test_the_report_lists_the_most_frequent_confusions_of_many_classes():
    cells = [[0, 0, 50], [3, 4, 2], [1, 2, 7]] + [[number, number + 1, 1] for number in range(50, 80)]
    names = [f"label-{number}" for number in range(150)]
    shown = report_figures.frequent_confusions([("site a", Line(round=1, scope="confusion", names=names, cells=cells))])
    assert shown.index("label-1<") < shown.index("label-3<") < shown.index("label-50<")
    assert shown.count("<tr>") == 1 + report_figures.MOST_CONFUSIONS
    assert "label-0<" not in shown  # a hit is no confusion
