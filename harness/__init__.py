"""mtpbench's harness: launches servers, drives load, records, reports."""

__version__ = "0.1.0"
