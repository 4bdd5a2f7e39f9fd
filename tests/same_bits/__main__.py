"""``python -m tests.same_bits``."""

import sys

from tests.same_bits.program import main

if __name__ == "__main__":
    sys.exit(main())
