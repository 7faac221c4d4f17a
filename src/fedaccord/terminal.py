"""The console of the command line, which shows control characters in names as escapes."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedaccord.plain_text import printable


class Terminal(Console):
    """A console whose text cannot control the terminal; only rich's own styles and cursor movements do."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a text, a table or a progress bar, with control characters as escapes."""
        for segment in super().render(renderable, options):
            # A segment with `control` moves the cursor and comes from rich, never from a name.
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
