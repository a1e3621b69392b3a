"""Files, processes, memory, logs: what every room may use of the machine."""
