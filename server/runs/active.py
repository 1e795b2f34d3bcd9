"""A run that is being served: its learner, its state, and the lock under which both change together with the store."""

import threading

import structlog

from distrust.common.errors import ProtocolError, RunFailed, Unavailable, WrongCohort, describe_error
from distrust.common.messages.cohort import Cohort
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import RunState, Snapshot
from distrust.common.run.round import Round, RoundView
from distrust.server.keys import PublicKeys
from distrust.server.learner.learner import Learner, blank
from distrust.server.runs.cohorts import round_message
from distrust.server.store import RunRow, Store

_log = structlog.get_logger("distrust.server")

BELOW = {"running": "open", "finished": "finished", "cancelled": "cancelled", "failed": "failed"}


class LiveRun:
    """One run in memory. Hold `lock` around everything; the store has committed whatever can be seen here."""

    def __init__(self, config: RunConfig, learner: Learner | None, store: Store, keys: PublicKeys) -> None:
        self.lock = threading.RLock()
        self.config, self.digest = config, config.digest()
        self.state: RunState = "running"
        self.reason: str | None = None
        self._learner, self._store, self._keys = learner, store, keys
        self._stale = False
        self._round: Round | None = None

    @classmethod
    def from_store(cls, row: RunRow, store: Store, keys: PublicKeys) -> "LiveRun":
        """The run after all the outcomes that were committed, in the state that was committed with the last of them.

        A run that was left running and that fails when it is played again is committed as failed, once. One that this
        version of the code refuses has failed and has no learner: all others are served.
        """
        learner, refusal = _replayed(row.config, store)
        live = cls(row.config, learner, store, keys)
        live.state, live.reason = row.state, row.reason
        if refusal is not None:
            live.state, live.reason = "failed", row.reason if row.state == "failed" else refusal
            _log.error("run_refused", run=row.config.run, was=row.state, why=refusal)
            if row.state == "running":
                live._commit_failure()
        elif row.state == "failed" and not live.learner.finished:  # the outcomes alone do not say why
            live.learner.stop(row.reason or "no reason was kept")
        elif row.state == "running":
            live.plan_next(live.learner)
            live.changed()
            if live.state == "failed":
                live._commit_failure()
        return live

    def _commit_failure(self) -> None:
        with self._store.writing() as writing:
            writing.state(self.config.run, self.state, self.reason)
            writing.event(self.config.run, kind="failed", detail=self.reason)

    def snapshot(self) -> Snapshot:
        """What the learner knows; nothing of a stored run that is refused today."""
        return blank(self.config) if self._learner is None else self.learner.snapshot()

    @property
    def learner(self) -> Learner:
        """What was committed. Raises Unavailable as long as it cannot be told: nothing else may be seen meanwhile.

        Raises RunFailed for a stored run that is refused today.
        """
        with self.lock:
            if self._learner is None:
                raise RunFailed(f"run {self.config.run} failed: {self.reason}")
            if self._stale:
                self._learner = Learner.replay(self.config, self._store.outcomes(self.config.run))
                self.plan_next(self._learner)
                self._stale = False
                self.changed()
            return self._learner

    def doubt(self) -> None:
        """A commit failed, or only its confirmation was lost: forget the learner until it has been read again."""
        self._stale = True

    def changed(self) -> None:
        """To be called whenever the learner has moved and its next round is planned, and that is committed."""
        learner = self._learner
        if self.state == "running" and learner is not None and learner.finished:
            self.state, self.reason = ended(learner), learner.fault

    def plan_next(self, learner: Learner) -> None:
        """Fail a run whose next round cannot be put in a message: each client that asks for it would see the error."""
        try:
            plan = learner.plan()
            self._round = None if plan is None else round_message(self.config, plan, self._keys)
        except Exception as error:  # noqa: BLE001 - whatever it is, no client can play this round
            self._round = None
            learner.fail(f"round {learner.rounds[-1].number}", error)

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


def _replayed(config: RunConfig, store: Store) -> tuple[Learner | None, str | None]:
    """Return the learner after its committed outcomes, or why this version of the code does not make one."""
    try:
        return Learner.replay(config, store.outcomes(config.run)), None
    except Unavailable:  # the database does not answer: that says nothing of the run
        raise
    except Exception as error:  # noqa: BLE001 - whatever one stored run does, the server starts for the others
        why = error.detail if isinstance(error, ProtocolError) else describe_error(error)
        return None, f"its stored configuration is refused: {why}"


def ended(learner: Learner) -> RunState:
    """The state of a run that nobody cancelled."""
    if not learner.finished:
        return "running"
    return "failed" if learner.fault else "finished"
