"""Settings: frozen, typed, read from the environment once, by `__main__`."""
