"""Two versions in turn on one machine, until it is sure or the pairs are spent."""
