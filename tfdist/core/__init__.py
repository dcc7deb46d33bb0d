"""Core: settings, environment, log, flight recorder, topology, reduce operations. Imports no other part of tfdist."""
