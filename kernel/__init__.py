"""The in-tree verify-attention kernel. Importing this package imports neither torch nor triton."""
