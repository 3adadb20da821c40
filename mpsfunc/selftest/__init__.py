"""Calls of every public function with their stored results, for machines without the test suite."""
