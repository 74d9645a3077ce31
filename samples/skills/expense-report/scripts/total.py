"""Print the sum of the arguments."""

import sys

print(f"{sum(map(float, sys.argv[1:])):.2f}")
