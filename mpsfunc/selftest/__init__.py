"""Calls of every public function with what came of them, for machines without the test suite."""
