"""Installs packages with pip, and shows what it is doing: one line in a terminal, the long steps elsewhere.

    python tools/install.py --editable .

pip alone prints either nothing for minutes or several hundred lines. Its complete output is shown if it fails.
Uses the standard library only, because it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable

LARGE = 10.0  # MB; elsewhere than in a terminal only such downloads are listed
_FILE = re.compile(
    r"\s*(Downloading|Using cached) (?:\S*/)?([\w.]+?)-([\w.!+%]+?)(?:-[^ ]*|\.tar\.gz|\.zip)(?: \((.*)\))?$"
)
_UNITS = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}


def step(line: str) -> tuple[str, bool] | None:
    """Return what a line of pip's output says is being done, and whether that may take long; None for other lines."""
    if found := _FILE.match(line):
        verb, name, version, size = found.groups()
        number, _, unit = (size or "").partition(" ")
        large = unit in _UNITS and float(number) * _UNITS[unit] >= LARGE
        return f"{verb.lower()} {name} {version}" + (f" ({size})" if size else ""), large
    if line.startswith("Collecting "):
        return f"looking for {line.split()[1]}", False
    if line.startswith("Installing collected packages: "):
        number = line.count(",") + 1
        return f"installing {number} package{'s' * (number > 1)}", True
    if line.lstrip().startswith(("Building ", "Preparing ", "Getting requirements ", "Installing build ")):
        return line.strip().partition(":")[0].lower(), False
    return None


class Display:
    """Shows the current step and how long it has taken."""

    def __init__(self) -> None:
        self.is_terminal, self.text, self.began = sys.stdout.isatty(), "starting pip", time.monotonic()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)
        if self.is_terminal:
            self._clock.start()

    def show(self, text: str, long: bool) -> None:
        """Show the next step."""
        self.text, self.began = text, time.monotonic()
        if not self.is_terminal and long:
            print(text, flush=True)

    def end(self) -> None:
        """Remove the line of the current step."""
        self._ended.set()
        if self.is_terminal:
            self._clock.join()
            print("\r\033[K", end="", flush=True)

    def _tick(self) -> None:
        while not self._ended.wait(0.2):
            width = os.get_terminal_size().columns if os.isatty(1) else 80
            line = f"{self.text}, {time.monotonic() - self.began:.0f} s"
            print(f"\r\033[K{line[: width - 1]}", end="", flush=True)


def main(arguments: Iterable[str]) -> int:
    """Run pip and return its exit code."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        *arguments,
    ]
    began, lines, display = time.monotonic(), list[str](), Display()
    pip = subprocess.Popen(
        command, env=os.environ | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert pip.stdout is not None
    try:
        for line in pip.stdout:
            lines.append(line)
            if done := step(line.rstrip()):
                display.show(*done)
        code = pip.wait()
    except KeyboardInterrupt:  # pip has got it too
        with contextlib.suppress(KeyboardInterrupt):
            pip.wait()
        code = 130
    finally:
        display.end()
    if code:
        print("".join(lines), end="", file=sys.stderr)
    else:
        print(f"installed in {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
