"""Running one experiment in variants, over paired seeds."""
