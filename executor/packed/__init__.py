"""Packed weights and paged K/V for the CPU, and one compiled call a phase that works on them."""
