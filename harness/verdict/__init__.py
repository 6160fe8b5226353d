"""Base against head: pairs, facts that must agree, a verdict, and how it is told."""
