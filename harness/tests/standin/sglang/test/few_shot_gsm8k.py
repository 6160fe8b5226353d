"""Says the accuracy that STANDIN_ACCURACY asks for, in the evaluator's words; `fail` fails."""

import os
import sys

accuracy = os.environ.get("STANDIN_ACCURACY", "0.95")
if accuracy == "fail":
    sys.exit("no test questions")
assert "--port" in sys.argv
with open(os.environ["STANDIN_COUNT"], "a") as count:
    count.write("x")
print(f"100%|####|\nAccuracy: {float(accuracy):.3f}\nInvalid: 0.000\nLatency: 1.0 s")
