"""`python -m slackswap_opt` is the command line."""

from slackswap_opt.cli import main

if __name__ == "__main__":
    main()
