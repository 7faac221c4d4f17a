"""What can go wrong, and how it is said.

FedAccordError
├── UserError (ValueError)       a mistake in what we were given; one sentence, exit code 2
│   ├── ConfigError              the experiment file: unknown key, wrong value, parts that do not fit
│   │   ├── UntrustedError       code that is not ours and that nobody has allowed to run
│   │   └── CorrespondenceError  a coarse site's table of classes: not a distribution, or about no class
│   ├── DataError                a file or data set: missing, unreadable, empty, of the wrong form
│   │   └── AnnotationError      single annotations that mean nothing in the label space
│   ├── PartitionError           a split into sites that cannot be made
│   └── TooFewSitesError         a robust rule was given fewer sites than it can work with
├── MessageError (ValueError)    a message that is not one: undecodable, or of a forbidden content
├── EngineError (RuntimeError)   the place where sites run broke down
└── RunFolderError (OSError)     a run folder that cannot be written or read; exit code 3
    └── FolderTakenError         the folder asked for is not empty; also a UserError, exit code 2
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel


class FedAccordError(Exception):
    """Root of everything FedAccord raises on purpose."""

    exit_code = 1


class UserError(FedAccordError, ValueError):
    """A mistake in what the user gave; its text is one sentence that says what, where and what to do."""

    exit_code = 2


class ConfigError(UserError):
    """The experiment file is wrong."""


class UntrustedError(ConfigError):
    """A file names code that is not part of FedAccord, and the person who runs it has not allowed it."""

    def __init__(self, name: str, package: str, what: str) -> None:
        self.package = package
        super().__init__(
            f"{what}: '{name}' would run code of the package '{package}', which is not part of FedAccord; "
            f'if you trust it, allow it with --trust {package} (in Python trust=["{package}"])'
        )


class CorrespondenceError(ConfigError):
    """A correspondence is wrong; `problems` holds a sentence for each mistake.

    `own` holds the same without any class that the correspondence does not name itself: what the site may read of it.
    """

    SHOWN = 10

    def __init__(self, problems: list[str], own: list[str], where: str = "") -> None:
        self.problems, self.own, self.where = problems, own, where
        super().__init__(self._told(problems))

    def at(self, where: str) -> CorrespondenceError:
        """Return the error with the place where it was made."""
        return CorrespondenceError(self.problems, self.own, f"{where}: ")

    def told_to_its_site(self) -> str:
        """Return the sentence without classes of other sites."""
        return self._told(self.own)

    def _told(self, problems: list[str]) -> str:
        more = len(problems) - self.SHOWN
        return self.where + "; ".join(problems[: self.SHOWN]) + (f"; and {more} more" if more > 0 else "")


class DataError(UserError):
    """A file or data set cannot be used."""


class PartitionError(UserError):
    """The asked split into sites cannot be made from these samples."""


class TooFewSitesError(UserError):
    """A robust rule was given fewer sites than it needs to outvote the hostile ones."""


class AnnotationError(DataError):
    """Some annotations cannot be read; `problems` holds one line for each of them."""

    SHOWN = 10

    def __init__(self, what: str, problems: list[str]) -> None:
        self.problems = problems
        shown = "; ".join(problems[: self.SHOWN])
        more = len(problems) - self.SHOWN
        super().__init__(f"{what}: {shown}" + (f"; and {more} more" if more > 0 else ""))


class MessageError(FedAccordError, ValueError):
    """A message cannot be encoded or decoded."""


class EngineError(FedAccordError, RuntimeError):
    """The engine itself failed, not a site."""


class RunFolderError(FedAccordError, OSError):
    """A run folder cannot be written or read."""

    exit_code = 3


class FolderTakenError(RunFolderError, UserError):
    """The folder asked for a new run has something in it already."""

    exit_code = 2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say the closest known word, or list what is known: the tail of every 'unknown name' message."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"known: {shown}" if names else "none is known"


def refuse_idle(settings: BaseModel, names: Iterable[str], when: str) -> None:
    """Refuse settings that nothing looks at, unless they have their defaults, which stand in every complete file."""
    for name in names:
        if getattr(settings, name) != type(settings).model_fields[name].default:
            raise ValueError(f"{name} has no effect {when}")
