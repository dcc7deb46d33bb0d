"""What each rank did: written by its flight recorder, read, compared between ranks, and drawn."""
