"""What all else stands on: settings, environment, log, flight recorder, topology, reduce operations. Knows nobody."""
