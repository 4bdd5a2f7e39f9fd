"""``python -m compss_train`` is the command ``compss-train``."""

import sys

from compss_train.cli import main

if __name__ == "__main__":
    sys.exit(main())
