"""The implementation of every job: what `import hrx` offers, and what the command line calls."""
