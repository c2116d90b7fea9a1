"""All tables on one page."""
