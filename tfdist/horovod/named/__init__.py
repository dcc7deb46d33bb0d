"""Named operations: the ranks match them by name, compare their requests and execute them, in any order of begin."""
