"""`python -m agentflow`: the command line."""

from agentflow_command import main

if __name__ == "__main__":
    main()
