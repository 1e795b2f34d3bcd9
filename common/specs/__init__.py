"""The tables of a run file that name a policy, checked: what parties compute from them without the policy itself."""
