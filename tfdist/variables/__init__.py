"""Variables of the ranks, in sessions and outside: reads, sets and compares them, and sends one rank's to all."""
