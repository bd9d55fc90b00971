"""Where runs are executed: in this process, in worker processes, on a Ray cluster."""
