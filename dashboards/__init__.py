"""Static pages made from stored runs."""
