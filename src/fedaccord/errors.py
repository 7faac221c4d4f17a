"""The exception hierarchy.

FedAccordError
├── UserError (ValueError)       invalid user input; the message is one sentence, exit code 2
│   ├── ConfigError              experiment file: unknown key, wrong value, incompatible settings
│   │   ├── UntrustedError       external code that the user has not allowed
│   │   └── CorrespondenceError  a coarse site's correspondence table: not a distribution, or unknown classes
│   ├── DataError                a file or data set: missing, unreadable, empty, wrong format
│   │   └── AnnotationError      annotations that are not in the label space
│   ├── PartitionError           an impossible split into sites
│   └── TooFewSitesError         fewer sites than a robust rule needs
├── MessageError (ValueError)    a message that cannot be decoded or has forbidden content
├── EngineError (RuntimeError)   the engine failed
└── RunFolderError (OSError)     a run folder that cannot be read or written; exit code 3
    └── FolderTakenError         the requested run folder is not empty; also a UserError, exit code 2
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

_NOT_THE_USERS = {"fedaccord", "torch", "numpy", "pydantic", *sys.stdlib_module_names}  # packages, in a traceback


class FedAccordError(Exception):
    """Base class of all FedAccord exceptions."""

    exit_code = 1


class UserError(FedAccordError, ValueError):
    """Invalid user input; the message is one sentence that says what, where and how to fix it."""

    exit_code = 2


class ConfigError(UserError):
    """The experiment file is invalid."""


class UntrustedError(ConfigError):
    """A file names code that is not part of FedAccord, and the person who runs it has not allowed it."""

    def __init__(self, name: str, package: str, what: str) -> None:
        self.package = package
        super().__init__(
            f"{what}: '{name}' would run code of the package '{package}', which is not part of FedAccord; "
            f'if you trust it, allow it with --trust {package} (in Python trust=["{package}"])'
        )


class CorrespondenceError(ConfigError):
    """A correspondence is invalid; `problems` has one sentence per mistake.

    `site_problems` has the same sentences without classes that the correspondence does not name, so that the site can
    read them.
    """

    def __init__(self, problems: list[str], site_problems: list[str], where: str = "") -> None:
        self.problems, self.site_problems, self.where = problems, site_problems, where
        super().__init__(where + first_problems(problems))

    def at(self, where: str) -> CorrespondenceError:
        """Return the error with its location as a prefix."""
        return CorrespondenceError(self.problems, self.site_problems, f"{where}: ")

    def message_for_site(self) -> str:
        """Return the message without classes of other sites."""
        return self.where + first_problems(self.site_problems)


class DataError(UserError):
    """A file or data set is unusable."""


class PartitionError(UserError):
    """The samples cannot be split into sites as requested."""


class TooFewSitesError(UserError):
    """A robust rule has fewer sites than it needs to outvote the hostile ones."""


class AnnotationError(DataError):
    """Some annotations cannot be read; `problems` has one line for each, `shown` those of the message."""

    def __init__(self, what: str, problems: list[str], shown: Sequence[str] | None = None) -> None:
        self.problems = problems
        super().__init__(f"{what}: {first_problems(problems if shown is None else shown)}")


class MessageError(FedAccordError, ValueError):
    """A message cannot be encoded or decoded."""


class EngineError(FedAccordError, RuntimeError):
    """The engine itself failed, not a site."""


class RunFolderError(FedAccordError, OSError):
    """A run folder cannot be written or read."""

    exit_code = 3


class FolderTakenError(RunFolderError, UserError):
    """The folder requested for a new run is not empty."""

    exit_code = 2


_in_full: ContextVar[bool] = ContextVar("lists in full", default=False)


@contextmanager
def lists_in_full() -> Iterator[None]:
    """Do not shorten any list in messages that are written within this context."""
    token = _in_full.set(True)
    try:
        yield
    finally:
        _in_full.reset(token)


def are_lists_in_full() -> bool:
    """Return whether lists are shown in full here."""
    return _in_full.get()


def first_problems(texts: Sequence[str], most: int = 10, separator: str = "; ") -> str:
    """Join texts: at most `most` of them and the number of others, or all if lists are shown in full."""
    shown = len(texts) if _in_full.get() else most
    more = f"{separator if separator != ', ' else ' '}and {len(texts) - shown} more" if len(texts) > shown else ""
    return separator.join(texts[:shown]) + more


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an "unknown name" message: the closest known name, or a list of the known names."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    most = len(names) if _in_full.get() else 12
    shown = ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")
    return f"known: {shown}" if names else "none is known"


def closest(word: str, names: Sequence[str]) -> str | None:
    """Return the name that is most like a word; one that differs only in case and punctuation comes first."""
    letters = "".join(filter(str.isalnum, word.casefold()))
    for name in names:
        if letters and letters == "".join(filter(str.isalnum, name.casefold())):
            return name
    return next(iter(difflib.get_close_matches(word, names, n=1, cutoff=0.75)), None)


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its text."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def described(error: BaseException) -> str:
    """Return the type and text of an error and, if a user's code raised it, the file name and line there."""
    text = f"{type(error).__name__}: {error}"
    frames = [] if isinstance(error, FedAccordError) else walk_tb(error.__traceback__)
    places = [
        f" ({Path(frame.f_code.co_filename).name}:{line})"
        for frame, line in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THE_USERS
    ]
    return text + "".join(places[-1:])


def refuse_unused(settings: BaseModel, names: Iterable[str], when: str) -> None:
    """Raise ValueError for settings that have no effect; defaults are allowed because complete files contain them."""
    for name in names:
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise ValueError(f"{name} has no effect {when}")


def listed(names: Sequence[str], quotes: bool = True, most: int = 10) -> str:
    """Return names separated by commas, at most `most` of them and the number of others."""
    return first_problems([f"'{name}'" if quotes else name for name in names], most, ", ")


def listed_sites(names: Sequence[str], most: int = 10) -> str:
    """Return "site 'a'", or "sites 'a', 'b'", with at most `most` names and the number of others."""
    return f"site{'s' * (len(names) > 1)} {listed(names, most=most)}"
