"""`python -m engine CONFIG ADDRESS`: what an engine's parent runs; not meant for people."""

import gc
import os
import sys
import traceback

# Importing torch and Transformers makes 350,000 objects that stay; looking through them for what
# may go took a fifth of that time, and half a second now and then while answers wait.
gc.disable()
from engine.server import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except Exception:  # noqa: BLE001  its last words, as the interpreter would say them
        status = 1
        traceback.print_exc()
    sys.stderr.flush()
    # All is closed; the interpreter would take seconds to take torch apart, and would wait for a
    # thread that waits on a GPU for a rank that is gone.
    os._exit(status)
