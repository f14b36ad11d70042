"""Reading runs: tables, statistics, trajectories in the terminal."""
