"""The load: streams to a server with a time stamp for each event, from several processes."""
