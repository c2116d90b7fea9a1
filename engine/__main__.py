"""`python -m engine CONFIG ADDRESS`: what an engine's parent runs; not meant for people."""

import sys

from engine.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
