"""From graphs to hardware: components, emission, simulation (extra `hardware`)."""
