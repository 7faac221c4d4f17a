"""The commands that read the results of a run: `fedaccord report`, `predict` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedaccord.cli_options import Trust, console
from fedaccord.errors import UserError

OfSite = Annotated[str | None, typer.Option("--site", help="Use this site's own model; by default the common one.")]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are put side by side.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File for a comparison; by default comparison.html in this folder.")
    ] = None,
    trust: Trust = None,
) -> None:
    """Write the report of a run again, or one page that compares several runs."""
    from fedaccord.runs.compare import DEFAULT_NAME, write_comparison
    from fedaccord.runs.report import write_report

    if len(runs) == 1 and out is not None:
        raise UserError("--out is for a comparison of several runs; the report of one run goes into its folder")
    written = write_report(runs[0]) if len(runs) == 1 else write_comparison(runs, out or Path(DEFAULT_NAME))
    console.print(
        f"{'report' if len(runs) == 1 else 'comparison'}: {written}", markup=False, highlight=False, soft_wrap=True
    )


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, or a copy of its model folder.")],
    file: Annotated[Path, typer.Argument(help="New rows: .csv, .parquet, .npz with x, or a folder of images.")],
    site: OfSite = None,
    answers: Annotated[str, typer.Option(help="classes: the federation's; own: those of the site.")] = "classes",
    candidates: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column or array of candidate sets (a|b) to choose from.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="File for the predictions.")] = Path("predictions.csv"),
    trust: Trust = None,
) -> None:
    """Write class names and probabilities for new rows, with the common model or a site's own."""
    from fedaccord.runs.predictions import predict_file

    written, rows = predict_file(run, file, out, site, answers, candidates)
    for column, number in rows.gaps.items():
        cells = "a cell is" if number == 1 else f"{number} cells are"
        console.print(f"note: column '{column}': {cells} missing or of no known category", highlight=False)
    console.print(f"predictions for {len(rows.x)} rows: {written}", highlight=False, soft_wrap=True)


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, or a copy of its model folder.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    site: OfSite = None,
    trust: Trust = None,
) -> None:
    """Write the trained model as an ONNX file: samples in, probabilities of the classes out."""
    from fedaccord.runs.onnx_export import export_onnx

    written = export_onnx(run, onnx, site)
    console.print(f"model: {written}", highlight=False, soft_wrap=True)
