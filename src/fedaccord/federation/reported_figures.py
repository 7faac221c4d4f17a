"""The figures that sites report: which ones a server accepts, and which replies it drops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedaccord.evaluation.ranges import EVALUATED, EXAMINED, fairness_ranges
from fedaccord.labels.views import view_class
from fedaccord.messages.checks import MOST_SAMPLES
from fedaccord.messages.figures import FigureSpec, find_metrics_problem
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import CALIBRATION

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

_ROWS = {"evaluate": "samples", "examine": "rows"}  # the number of test rows in a reply


class ReportedFigures:
    """Admits replies to tasks that measure figures; remembers the test rows of each site, which never change."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rows: dict[SiteId, int] = {}

    def admit(self, answers: Mapping[SiteId, Message], task: str) -> dict[SiteId, Message]:
        """Return the replies with expected figures within their ranges; drop the others with the reason."""
        server, admitted = self._server, {}
        for site, answer in answers.items():
            problem = find_metrics_problem(answer, self.spec(site, task), server.run, server.state.round + 1)
            rows = answer.numbers.get(_ROWS[task], 0)
            if problem is not None:
                server.drop(site, task, problem.tensor, problem.reason)
            elif task == "evaluate" and rows and self._rows.setdefault(site, int(rows)) != rows:
                reason = f"the site reports {rows:g} test rows, but had {self._rows[site]}"
                server.drop(site, task, "samples", reason)
            else:
                admitted[site] = answer
        return admitted

    def spec(self, site: SiteId, task: str) -> FigureSpec:
        """Return what a site may report."""
        server, card = self._server, self._server.cards[site]
        ranges = {**EVALUATED, **server.recipe.objective.figures, **view_class(card.view).figures}
        if server.target is not None:
            ranges |= fairness_ranges(server.target.groups)
        answers, labels = self.answers(site), len(server.space)
        if task == "evaluate":
            return FigureSpec(ranges, answers, labels)
        most = self._rows.get(site, MOST_SAMPLES)
        return FigureSpec(ranges | EXAMINED, answers, labels, "rows", True, frozenset({CALIBRATION}), most)

    def answers(self, site: SiteId) -> int:
        """Return the number of answers of a site's own task."""
        server = self._server
        return server.answers.get(site) or server.cards[site].answers or len(server.space)
