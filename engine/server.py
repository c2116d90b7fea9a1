"""The engine process: a local engine behind a socket. Knows frames, not what they mean."""
