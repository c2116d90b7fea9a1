"""An engine in this process: worker thread, inbox, clock. The only place that joins core and model."""
