"""A stored run → its lines, and the report that every output shows."""
