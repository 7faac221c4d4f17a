"""Every sum on one thread, so that numbers do not depend on the machine."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytestmark = pytest.mark.usefixtures("one_thread")
