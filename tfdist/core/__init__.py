"""What everything else stands on: settings, environment, log, timeline, topology, reduce operations. Knows nobody."""
