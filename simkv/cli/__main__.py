"""``python -m simkv.cli``."""

import sys

from simkv.cli import main

sys.exit(main())
