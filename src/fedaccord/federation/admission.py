"""`[admit]`: which updates the server accepts; importable without torch."""

from __future__ import annotations

from pydantic import Field, field_validator

from fedaccord.data.declarations import Section

NORM = 10.0


class AdmitSection(Section):
    """`[admit]`: limits on the updates that sites send."""

    norm: float | None = Field(
        None,
        ge=0,
        description="how many times as long as the median update of a round an update may be; a longer one is "
        "reported; the first of a site is shortened to the limit, later ones are left out; 0: no limit; left out: 10, "
        "and no limit in a study with `method.attack`, so that defences are compared alone",
    )
    clip: bool = Field(False, description="shorten every longer update to the length of the median update of its round")

    @field_validator("norm")
    @classmethod
    def _leaves_honest_sites_in(cls, norm: float | None) -> float | None:
        if norm is not None and 0 < norm < 2:
            raise ValueError(f"{norm:g} would leave out honest updates; use 2 or more, or 0 for no limit")
        return norm

    def limit(self, is_attacked: bool) -> float:
        """Return the limit of the length of updates, in medians; 0: none."""
        return (0.0 if is_attacked else NORM) if self.norm is None else self.norm
