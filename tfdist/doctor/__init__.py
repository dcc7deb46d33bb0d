"""``python -m tfdist``: checks what a job needs, before its start and among its ranks. A line is OK or what to do."""
