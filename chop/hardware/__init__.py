"""Circuits of quantised networks: Verilog, simulation, synthesis, and estimates of their cost.

circuit.py describes a circuit; unrolled and streaming write one from an integer graph; simulation
and synthesis run Verilator and yosys on it; estimate predicts its cost without any tool.
"""
