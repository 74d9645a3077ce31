"""`python -m agentflow`: the command line."""

from agentflow.cli.main import main

if __name__ == "__main__":
    main()
