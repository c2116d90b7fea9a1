"""`python -m engine CONFIG ADDRESS`: what an engine's parent runs; not meant for people."""

import gc
import os
import sys

# Importing torch and Transformers makes 350,000 objects that stay; looking through them for what
# may go took a fifth of that time, and half a second now and then while answers wait.
gc.disable()
from engine.server import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # All is closed; the interpreter would take seconds to take torch apart.
    os._exit(status)
