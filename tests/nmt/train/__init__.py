"""Steps, schedule, loop, evaluation."""
