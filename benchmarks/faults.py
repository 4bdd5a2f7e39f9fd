"""Samples/s that are left where a worker process is killed again and again, on each engine."""

from __future__ import annotations

from statistics import median
from tempfile import TemporaryDirectory

from _common import parser, print_table, spread
from _compss import call
from _fault_parts import WORKERS, rate

SLOTS, FAULT_SECONDS = 32, 1800 / 62
"""A larger machine that is computed: torchft's own test had 62 faults in half an hour with so many replicas."""


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=40)
    options_parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    options_parser.add_argument("--samples", type=int, default=60_000)
    options_parser.add_argument("--every", type=float, default=15.0, help="seconds between kills")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples, options.every = 1, 4, 10_000, 2.0
    rows = []
    for engine in options.engines:
        kept, cost, kills = [], [], 0
        for _ in range(options.repetitions):
            runs = []
            for every in (0.0, options.every):
                with TemporaryDirectory() as folder:
                    runs.append(call(rate, engine, options.samples, options.epochs, every, folder))
            still, disturbed = runs
            kept.append(disturbed["rate"] / still["rate"])
            kills += disturbed["kills"]
            if disturbed["kills"]:
                cost.append((disturbed["seconds"] - still["seconds"]) / disturbed["kills"])
        large = 1 - median(cost or [0.0]) / FAULT_SECONDS  # all slots wait for the one that trains again
        rows.append([engine, str(kills), spread(kept, ".2f"), spread(cost, ".1f") if cost else "-", f"{large:.3f}"])
    headers = ["engine", "kills", "kept of the samples/s", "seconds a kill", f"{SLOTS} slots, computed"]
    print_table(f"A worker killed every {options.every:g} s, {WORKERS} slots", headers, rows)


if __name__ == "__main__":
    main()
