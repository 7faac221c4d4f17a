"""The command line: a thin layer that starts quickly and never shows a traceback for a mistake of the user.

Exit codes: 0 success; 1 failure, also of a run whose model should not be used; 2 invalid input; 3 a run folder cannot
be read or written; 130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaccord import __version__
from fedaccord.cli_compare import compare, report
from fedaccord.cli_options import Change, Config, OwnTrust, Trust, complain, console, say
from fedaccord.cli_prepare import check, datasets, deploy, init, methods, models, reproduce, tables, upgrade, views
from fedaccord.cli_run import alone_beside, carry_out, carry_out_both, conclude, watched, workers_started
from fedaccord.cli_seeds import run_seeds
from fedaccord.cli_tune import tune
from fedaccord.cli_watch import watch
from fedaccord.config import (
    load_experiment,
    parse_experiment,
    parse_reading,
)
from fedaccord.engines.crew import importing
from fedaccord.errors import FedAccordError, RunFolderError, UserError
from fedaccord.runs.seed_runs import parse_seeds

if TYPE_CHECKING:
    pass

_MOST_AHEAD = 4  # workers started before the federation's size is known

app = typer.Typer(
    name="fedaccord",
    help="Federated learning when the sites' labels do not agree.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(init)
app.command()(check)
app.command()(upgrade)

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run; by default runs/NAME.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=0, help="Worker processes; 0 runs in this process. Default: all cores.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of every random stream of the run.")]
Trained = Annotated[
    Path, typer.Argument(help="The folder of a finished run, a copy of its model folder, or a deployed site's folder.")
]
OfSite = Annotated[str | None, typer.Option("--site", help="Use this site's own model; by default the common one.")]
Answers = Annotated[str, typer.Option("--answers", help="classes: the federation's; own: those of the site.")]


def main() -> None:
    """Run the command line; print a known error as one sentence and exit with its code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character must not end a run
    try:
        app(prog_name="fedaccord")
    except FedAccordError as error:
        complain(("error:", "bold red"), " " + " ".join(str(error).splitlines()))
        sys.exit(error.exit_code)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        say(f"fedaccord {__version__}")
        raise typer.Exit()


@app.command()
def run(
    config: Config,
    change: Change = None,
    out: Out = None,
    workers: Workers = None,
    seed: Seed = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Where sites run: embedded, or flower (its simulation; an extra).")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option("--track", help="Mirror the figures for tensorboard or mlflow (extras). May be repeated."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="One run for each seed: 8 (that is 0-7), 0-7 or 0,2,5.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the folder instead of choosing a free one.")
    ] = False,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="First let every site train alone, with the same budget, and compare with that."),
    ] = False,
    trust: OwnTrust = None,
) -> None:
    """Train the federation of an experiment file, and write its run folder with a report."""
    options = {"run.workers": workers, "seed": seed, "run.track": track or None, "run.engine": engine}
    experiment, base = load_experiment(config, [*(change or []), *_changes(options)])

    if seeds is not None and seed is not None:
        raise UserError("--seed is for one run and --seeds for several; give one of them")
    if seeds is not None and overwrite:
        raise UserError("--overwrite is for one run; --seeds keeps finished runs, so give another folder with --out")
    if seeds is not None:
        each = {number: experiment.model_copy(update={"seed": number}) for number in parse_seeds(seeds)}
        run_seeds(each, base, out, alone, partial(resume, workers=workers))
    elif alone:
        beside = None if out is None else alone_beside(out)
        carry_out_both(experiment, base, beside, out, overwrite=overwrite)
    else:
        conclude(*carry_out(experiment, base, out, overwrite=overwrite))


@app.command()
def demo(out: Out = None, workers: Workers = None, seed: Seed = None) -> None:
    """Train the bundled federation of five disagreeing sites, and compare each one with its model trained alone."""
    text = resources.files("fedaccord").joinpath("demo.toml").read_text(encoding="utf-8")
    changes = _changes({"run.workers": workers, "seed": seed})
    conclude(*carry_out(parse_experiment(text, changes, "demo"), Path.cwd(), out, repeats=True))


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was stopped, killed or cut off.")],
    workers: Workers = None,
    trust: OwnTrust = None,
) -> None:
    """Continue a run from its last checkpoint; the result is that of an uninterrupted run."""
    if not run.is_dir():
        raise RunFolderError(f"'{run}' cannot be resumed: there is no such folder")
    if not (run / "config.toml").exists():
        raise RunFolderError(
            f"'{run}' cannot be resumed: it has no config.toml; if it was interrupted at its start, run it again"
        )
    experiment, _ = load_experiment(run / "config.toml")
    if _is_finished(run):
        return
    with workers_started(experiment, workers):
        # Imported here: torch takes seconds to load, and --help or a wrong file should not wait for it.
        with importing():
            from fedaccord.display import Display
            from fedaccord.experiment import resume_experiment
            from fedaccord.runs.folder import RunFolder

        folder = RunFolder(run, reopen=True)
        if _is_finished(run):  # by the process that had locked the folder
            folder.close()
            return
        with watched(folder), Display(experiment, console) as display:
            summary = resume_experiment(folder, display.watcher(), workers)
    conclude(folder, summary)


app.command()(watch)
app.command()(report)
app.command()(compare)
app.command()(tune)


@app.command()
def predict(
    run: Trained,
    file: Annotated[Path, typer.Argument(help="New rows: a table, an .npz file with x, or a folder of images.")],
    site: OfSite = None,
    answers: Answers = "classes",
    candidates: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column or array of candidate sets (a|b) to choose from.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COLUMN", help="Copy this column to the predictions; all: every one. May be repeated."
        ),
    ] = None,
    fill: Annotated[bool, typer.Option("--fill", help="Treat columns that the file lacks as missing values.")] = False,
    read: Annotated[
        str | None, typer.Option(metavar="TABLE", help="How a table is written, such as '{ decimal = \",\" }'.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="File for the predictions (CSV).")] = Path("predictions.csv"),
    trust: Trust = None,
) -> None:
    """Write class names and probabilities for new rows, with the common model or a site's own."""
    from fedaccord.runs.predictions import Question, predict_file

    reading = None if read is None else parse_reading(read)
    question = Question(site, answers, candidates, keep or [], fill, reading)
    written, rows, notes = predict_file(run, file, out, question)
    for note in notes:
        say(f"note: {note}")
    say(f"predictions for {rows} row{'s' * (rows != 1)}: {written}")


@app.command()
def export(
    run: Trained,
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    site: OfSite = None,
    answers: Answers = "classes",
    trust: Trust = None,
) -> None:
    """Write the trained model as an ONNX file: columns of a table or samples in, probabilities out."""
    from fedaccord.runs.onnx_export import export_onnx

    written, notes = export_onnx(run, onnx, site, answers)
    for note in notes:
        say(f"note: {note}")
    say(f"model: {written}")


def _changes(options: Mapping[str, Any]) -> list[str]:
    """Return the options that were given as changes of an experiment file."""
    return [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]


def _is_finished(run: Path) -> bool:
    """Return whether a run is finished; write its report if that is missing."""
    if not (run / "summary.json").exists():
        return False
    say(f"the run in {run} is finished: nothing to do")
    if not (run / "report.html").exists():
        from fedaccord.experiment import finish_report
        from fedaccord.runs.checkpoint import read_run

        say(f"but its report was missing: {finish_report(run, read_run(run))}")
    return True


for command in (deploy, methods, models, views, datasets):
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(reproduce)
app.command()(tables)
