"""A measurement: servers launched and proved, passes driven, all of it recorded."""
