"""One file per implementation family that the suite can ask."""
