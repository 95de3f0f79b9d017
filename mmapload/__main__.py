"""`python -m mmapload` is the command `mmapload`."""

from __future__ import annotations

import sys

from mmapload.cli import main

if __name__ == "__main__":
    sys.exit(main())
