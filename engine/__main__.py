"""`python -m engine CONFIG ADDRESS`: what an engine's parent runs; not meant for people."""

import os
import sys

from engine.server import main

if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # All is closed; the interpreter would take seconds to take torch apart.
    os._exit(status)
