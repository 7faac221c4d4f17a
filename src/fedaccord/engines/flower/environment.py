"""Environment variables for Flower's programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}
"""No telemetry, no update checks, no installation of packages, and one thread as in all engines."""


def flower_environment(folder: Path) -> dict[str, str]:
    """Return the environment of Flower's programs in a deployment whose files are in `folder`."""
    return QUIET | {
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; Flower's default is 1
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
