"""Runs one operation on a device, and knows no family: launches, derivatives, checks, errors, settings."""
