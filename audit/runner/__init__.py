"""From a plan to stored records: one run, the scheduler, the workers."""
