"""One running job: ids, block table, progress, status."""
