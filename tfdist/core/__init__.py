"""Core: settings, environment, log, topology, reduce operations. Imports no other part of tfdist."""
