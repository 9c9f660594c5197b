"""``python -m fallow`` is the command line."""

from __future__ import annotations

import sys

from fallow.cli import main

sys.exit(main())
