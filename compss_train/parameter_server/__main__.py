"""The process of ``serve_apart``: serves at an address until its input ends, as it does with its parent."""

from __future__ import annotations

import json
import sys

from compss_train.parameter_server import serve


def main(address: str) -> None:
    """Serve, and say in one line of JSON where, or why not."""
    try:
        serving = serve(address)
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    with serving:
        print(json.dumps({"address": serving.address, "token": serving.token}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
