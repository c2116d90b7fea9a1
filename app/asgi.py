"""Composition root: settings and an engine in, an ASGI application out. The only file that knows everybody."""
