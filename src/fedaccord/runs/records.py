"""The lines of a round in metrics.jsonl, and the parts of summary.json and federation.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedaccord.data.coverage import connected_groups
from fedaccord.data.site_data import SiteData
from fedaccord.data.sites import FederationData
from fedaccord.evaluation.confusion import class_sums, describe
from fedaccord.evaluation.differences import Gain
from fedaccord.evaluation.intervals import Estimate
from fedaccord.evaluation.metrics import recall
from fedaccord.evaluation.quality import Quality
from fedaccord.federation.examination import Examination
from fedaccord.federation.membership import ALWAYS, Membership
from fedaccord.federation.round import Evaluation, RoundRecord
from fedaccord.federation.server import Server, SiteCard
from fedaccord.federation.state import Dropped
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import View
from fedaccord.lazy import torch
from fedaccord.messages.message import Message


def round_lines(record: RoundRecord, space: LabelSpace, views: Mapping[str, View]) -> list[dict[str, Any]]:
    """Return the lines of one round, one or more per scope."""
    at, dropped = record.round, [drop.as_dict() for drop in record.dropped]
    line: dict[str, Any] = {"round": at, "scope": "round"}
    line |= {name: getattr(record, name) for name in ("asked", "replied", "loss", "absent")} | {"dropped": dropped}
    line["bytes"] = {site: list(numbers) for site, numbers in record.bytes.items()}
    line["seconds"] = {step: round(seconds, 6) for step, seconds in record.seconds.items()}
    optional = {name: getattr(record, name) for name in ("joined", "left", "warnings", "figures")}
    line |= {name: value for name, value in optional.items() if value}
    if record.simulated is not None:
        line["simulated"] = round(record.simulated, 6)
    if not record.finite:
        line["finite"] = False
    lines = [line]
    figures = record.evaluation
    if figures is None:
        return lines
    if figures.global_:
        lines.append({"round": at, "scope": "global", "metrics": figures.global_})
    lines += [{"round": at, **line} for line in _class_lines(figures, space.names, views)]
    if figures.sites:
        lines.append({"round": at, "scope": "sites", **figures.over_sites(), **_pooled(figures)})
    lines += [{"round": at, "scope": "site", "site": s, "metrics": m} for s, m in figures.sites.items()]
    return lines


def _class_lines(figures: Evaluation, names: Sequence[str], views: Mapping[str, View]) -> list[dict[str, Any]]:
    """Return the recall of each class on the server's test data or, without any, on those of the sites.

    Sites that answer in the federation's classes are counted, and `sites` lists them.
    """
    counts, line = figures.confusion, dict[str, Any]()
    if counts is None:
        answered = {site: each for site, each in figures.site_confusions.items() if len(each) == len(names)}
        found = {s: each for s, each in answered.items() if views[s].answers == tuple(names) and int(each.sum())}
        if not found:
            return []
        counts, line = sum(found.values(), torch.zeros_like(next(iter(found.values())))), {"sites": list(found)}
    samples = dict(zip(names, class_sums(counts)[1], strict=True))
    return [{"scope": "classes", "recall": recall(counts, names), "samples": samples, **line}]


def last_lines(record: RoundRecord, server: Server, data: FederationData) -> list[dict[str, Any]]:
    """Return the further lines of the last round: confusion counts, estimated correspondences, the method's own."""
    lines = [] if record.evaluation is None else confusion_lines(record.evaluation, data)
    lines += _correspondence_lines(server, data)
    lines += server.recipe.report(server) if server.recipe.report else []
    return [{"round": record.round, **line} for line in lines]


def confusion_lines(figures: Evaluation, data: FederationData) -> list[dict[str, Any]]:
    """Return confusion counts: one line for the global model and one per site."""
    counts: dict[str | None, Any] = {} if figures.confusion is None else {None: figures.confusion}
    counts |= {site: found for site, found in figures.site_confusions.items() if int(found.sum())}
    names = {site: data.space.names if site is None else data.sites[site].view.answers for site in counts}
    return [
        {"scope": "confusion", "site": site, "names": list(names[site]), **describe(found)}
        for site, found in counts.items()
    ]


def quality_lines(found: Examination, at: int, views: Mapping[str, View]) -> list[dict[str, Any]]:
    """Return the lines of the examination after the last round: of the global model and of each site."""
    described = describe_quality(found, views)
    whole = [(None, described["global"])] if "global" in described else []
    each = [*whole, *described["sites"].items()]
    return [{"round": at, "scope": "quality", "site": site, **quality} for site, quality in each]


def describe_quality(found: Examination, views: Mapping[str, View]) -> dict[str, Any]:
    """Return the `quality` part of the summary."""
    sites = {site: _quality(quality, views[site].headlines) for site, quality in found.sites.items()}
    # The server's test data have tags or classes, and each of them has only its own headline.
    headlines = [name for view in views.values() for name in view.headlines]
    overall = {} if found.overall is None else {"global": _quality(found.overall, headlines)}
    sent, received = (sum(each) for each in zip(*found.bytes.values(), strict=True)) if found.bytes else (0, 0)
    return {**overall, "sites": sites, "bytes": {"sent": sent, "received": received}}


def describe_gains(gains: Mapping[str, Gain]) -> dict[str, Any]:
    """Return the `gains` part of the summary: what each site's model is ahead of its model alone."""
    return {
        site: {
            "measure": gain.measure,
            "alone": round(gain.alone, 6),
            "together": round(gain.together, 6),
            "difference": _estimate(gain.difference.estimate),
            "rows": gain.difference.rows,
            "standing": gain.difference.standing,
        }
        for site, gain in gains.items()
        if gain.difference is not None
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 6) for name, value in asdict(estimate).items()}


def _quality(quality: Quality, headlines: Iterable[str]) -> dict[str, Any]:
    measures = {name: _estimate(measure) for name, measure in quality.measures.items()}
    return {
        "head": next((name for name in headlines if name in measures), ""),
        "rows": quality.rows,
        "classes": quality.classes,
        "resamples": quality.resamples,
        "measures": measures,
        "calibration": [[round(value, 6) for value in row] for row in quality.calibration],
    }


def _correspondence_lines(server: Server, data: FederationData) -> list[dict[str, Any]]:
    """Return the correspondences that sites have estimated, as far as this process knows them."""
    lines: list[dict[str, Any]] = []
    memories = server.engine.memories()
    for name, card in server.cards.items():
        if name not in data.sites:
            continue
        brief, memory = server.recipe.exchange.brief_for(server, card), memories.get(name, Message())
        view = server.recipe.objective.site_view(data.sites[name].view, brief, memory)
        if view.estimated and view.is_known:
            found = {"names": list(view.answers), "matrix": _rounded(view, 4)}
            lines.append({"scope": "correspondence", "site": name, **found})
    return lines


def describe_federation(
    data: FederationData, cards: Mapping[str, SiteCard], memberships: Mapping[str, Membership] | None = None
) -> dict[str, Any]:
    """Return the content of federation.json: the sites, when they took part, and the labels that each one informs."""
    memberships = memberships or {}
    sites = {
        name: {
            "view": site.view.describe(),
            "train": len(site.train),
            "test": len(site.test),
            "informs": [label for label, seen in zip(data.space, site.view.informs().tolist(), strict=True) if seen],
            **set_size(site),
            **({"joins": memberships[name].joins, "leaves": memberships[name].leaves} if name in memberships else {}),
        }
        for name, site in data.sites.items()
    }
    views = data.views
    return {
        "labels": list(data.space.names),
        "sites": sites,
        "joined": sorted(name for name in cards if memberships.get(name, ALWAYS).joins == 1),  # when the run started
        "groups": [list(group) for group in connected_groups(views, data.space)],
        "correspondences": {
            name: _rounded(view, 6) for name, view in views.items() if view.has_own_names and view.is_known
        },
        "histogram": data.histogram,
        "partition": data.partition,
        "features": None if data.features is None else data.features.names,
        "missing": data.missing_cells,
        "test": data.test_source,
        "notes": data.notes,
    }


def set_size(site: SiteData) -> dict[str, float]:
    """Return the mean size of a site's candidate sets; empty for a site without candidate sets."""
    size = site.view.set_size(site.train.target) if site.train.target.numel() else None  # no samples here
    return {} if size is None else {"set_size": round(size, 6)}


def _rounded(view: View, digits: int) -> list[list[float]]:
    """Return P(coarse name | class) as one row per name."""
    return [[round(share, digits) for share in row] for row in view.matrix.tolist()]


@dataclass
class Best:
    """The best round so far, by the first of `headlines` that was measured: its mean over sites, or the global one."""

    headlines: tuple[str, ...] = ("accuracy",)
    metric: str = ""
    value: float = float("-inf")
    round: int = 0
    figures: dict[str, Any] = field(default_factory=dict)

    def look(self, at: int, figures: Mapping[str, Any]) -> None:
        """Store the metrics of a round, by scope, if they are the best so far."""
        tables = {"sites.mean": figures["sites"]["mean"], "global": figures["global"]}
        candidates = (
            (f"{scope}.{name}", table.get(name)) for name in self.headlines for scope, table in tables.items()
        )
        for metric, value in candidates:
            if value is not None and self.metric in ("", metric):
                self.metric = metric
                if value > self.value:
                    self.value, self.round, self.figures = value, at, dict(figures)
                return

    def summary(self) -> dict[str, Any]:
        """Return the `best` part of the summary."""
        return {"round": self.round, "metric": self.metric, **(self.figures or {"global": {}, "sites": {}})}


def scopes(figures: Evaluation | None) -> dict[str, Any]:
    """Return metrics by scope, as in the summary."""
    if figures is None:
        return {"global": {}, "sites": {"mean": {}, "std": {}, "each": {}}}
    spread = figures.over_sites()
    return {
        "global": figures.global_,
        "sites": {"mean": spread["mean"], "std": spread["std"], "each": figures.sites, **_pooled(figures)},
    }


def _pooled(figures: Evaluation) -> dict[str, Any]:
    """Return the metrics pooled over all sites' rows; empty without [fairness]."""
    pooled = figures.pooled()
    return {"pooled": pooled} if pooled else {}


def ending_lines(at: int, figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of what each site ends with after a run, from metrics by scope."""
    each = figures["sites"]["each"].items()
    return [{"round": at, "scope": "ends with", "site": site, "metrics": metrics} for site, metrics in each]


def past_scopes(lines: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return metrics by round and scope from lines of metrics.jsonl, in the form of `scopes`."""
    # Include evaluated rounds in which no site returned a metric.
    evaluated = [line["round"] for line in lines if line["scope"] == "round" and "evaluate" in line.get("seconds", {})]
    rounds: dict[int, dict[str, Any]] = {number: scopes(None) for number in evaluated}
    for line in lines:
        if line["scope"] in ("global", "sites", "site"):
            figures = rounds.setdefault(line["round"], scopes(None))
            if line["scope"] == "global":
                figures["global"] = line["metrics"]
            elif line["scope"] == "sites":
                figures["sites"].update({name: line[name] for name in ("mean", "std", "pooled") if name in line})
            else:
                figures["sites"]["each"][line["site"]] = line["metrics"]
    return rounds


def past_warnings(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the warnings in lines of metrics.jsonl."""
    return [text for line in lines if line["scope"] == "round" for text in line.get("warnings", [])]


def past_drops(lines: Sequence[Mapping[str, Any]]) -> list[Dropped]:
    """Return the dropped replies in lines of metrics.jsonl."""
    return [Dropped(**drop) for line in lines if line["scope"] == "round" for drop in line["dropped"]]
