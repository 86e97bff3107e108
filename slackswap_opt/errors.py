"""Every exception the package raises on purpose.

An infeasible budget is neither a bug nor bad input: planners return it as a result (see
`slackswap_opt.plan.result`), they do not raise it.
"""


class SlackSwapError(Exception):
    """Base of every error raised on purpose; its text is written for the user."""


class InputError(SlackSwapError, ValueError):
    """Something the user gave is wrong; the text names the place and the remedy.

    Attributes:
        faults: every fault found, one sentence each, in the order found.
    """

    def __init__(self, *faults: str, where: str = "") -> None:
        self.faults: tuple[str, ...] = faults
        self.where = where
        prefix = f"{where}: " if where else ""
        super().__init__("\n".join(prefix + fault for fault in faults))

    def at(self, where: str) -> "InputError":
        """The same faults, each preceded by the file they were found in."""
        return InputError(*self.faults, where=where)


class ScheduleError(SlackSwapError):
    """A schedule breaks a rule of the step it claims to run (a missing input, a lost version)."""


class SolverUnavailableError(SlackSwapError):
    """No usable solver program could be started."""


class CertificateError(SlackSwapError):
    """A simulated step came out faster than the proven bound: a defect of this package."""
