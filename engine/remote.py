"""An engine in its own process, seen from the app: client, supervision, resubmission."""
