"""What a run needs from outside: models, stores, a clock, and the rule of retries."""
