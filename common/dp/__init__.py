"""Differential privacy for sums: noise, accounting, mechanisms and a calculator. It imports no protocol."""
