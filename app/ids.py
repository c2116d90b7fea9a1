"""Ids and their prefixes."""
