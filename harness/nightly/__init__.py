"""Many nights: series, changes, quarantined hosts, issues."""
