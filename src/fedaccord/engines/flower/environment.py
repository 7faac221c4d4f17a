"""What Flower's programs are told by their environment."""

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
"""To call nobody outside and install nothing; and to compute on one thread, as all that serves sites does."""


def flower_environment(folder: Path) -> dict[str, str]:
    """Return what Flower's programs need to know in a deployment: where their files are, and to keep quiet."""
    return QUIET | {
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; Flower's own is one
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
