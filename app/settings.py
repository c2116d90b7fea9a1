"""Settings: frozen, typed, read from the environment once, by `__main__`."""

SHORTEST_API_KEY = 20
