"""Plan and commit: joins the cache, the scheduler and the runner. Pure: no torch, no clock, no loop."""
