"""Drains GSM8K with capture while everything fails at random, and compares with an undisturbed run."""
