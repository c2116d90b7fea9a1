"""Picks an engine by its address and opens it; imports lazily, so that `app` never loads torch."""
