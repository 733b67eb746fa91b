"""Makes the shared helpers of these tests, and the step-by-step driver, importable under any import mode."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "conformance"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
