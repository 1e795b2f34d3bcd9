"""A run that is being served: its learner, its state, and the lock under which both change together with the store."""

import threading

from common.errors import WrongCohort
from common.messages.cohort import Cohort
from common.messages.progress import RunState
from common.messages.round import Round, RoundView
from common.messages.run import RunConfig
from server.cohorts import round_message
from server.keys import PublicKeys
from server.learner import Learner
from server.store import Store

BELOW = {"running": "open", "finished": "finished", "cancelled": "cancelled", "failed": "failed"}


class LiveRun:
    """One run in memory. Hold `lock` around everything; the store has committed whatever can be seen here."""

    def __init__(self, config: RunConfig, learner: Learner, store: Store, keys: PublicKeys) -> None:
        self.lock = threading.RLock()
        self.config, self.digest = config, config.digest()
        self.state: RunState = "running"
        self.reason: str | None = None
        self._learner, self._store, self._keys = learner, store, keys
        self._stale = False
        self._round: Round | None = None

    @classmethod
    def from_store(cls, config: RunConfig, store: Store, keys: PublicKeys) -> "LiveRun":
        """The run after all the outcomes that were committed."""
        return cls(config, Learner.replay(config, store.outcomes(config.run)), store, keys)

    @property
    def learner(self) -> Learner:
        """What was committed. Raises Unavailable as long as it cannot be told: nothing else may be seen meanwhile."""
        with self.lock:
            if self._stale:
                self._learner = Learner.replay(self.config, self._store.outcomes(self.config.run))
                self._stale = False
                self.changed()
            return self._learner

    def doubt(self) -> None:
        """A commit failed, or only its confirmation was lost: forget the learner until it has been read again."""
        self._stale = True

    def changed(self) -> None:
        """To be called whenever the learner has moved, and that is committed."""
        self._round = None
        if self.state == "running" and self._learner.finished:
            self.state, self.reason = ended(self._learner), self._learner.fault

    def round(self) -> Round | None:
        """The open round with the cohorts that are still to be played; None when there is none."""
        plan = self.learner.plan() if self.state == "running" else None
        if plan is not None and self._round is None:
            self._round = round_message(self.config, plan, self._keys)
        return self._round if plan is not None else None

    def view(self) -> RoundView:
        """The answer to GET /round."""
        asked = self.round()  # first, as reading the learner again may find that the run is over
        return RoundView.model_validate(
            {"run": self.config.run, "state": BELOW[self.state], "config": self.digest, "round": asked}
        )

    def pending(self) -> list[Cohort]:
        """The open round's cohorts without an outcome, in cohort order."""
        found = self.round()
        return [] if found is None else [assignment.cohort for assignment in found.assignments]

    def cohort(self, cohort: str) -> Cohort:
        """One of them. Raises WrongCohort."""
        for one in self.pending():
            if one.cohort == cohort:
                return one
        raise WrongCohort(f"cohort {cohort} is not waited for in run {self.config.run}")


def ended(learner: Learner) -> RunState:
    """The state of a run that nobody cancelled."""
    if not learner.finished:
        return "running"
    return "failed" if learner.fault else "finished"
