"""The command `mtpbench`. Wiring only: each verb's work is done by the rooms beneath."""
