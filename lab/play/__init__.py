"""Plays a run file without sockets, by the same policies, mechanisms and analyzer as services, and advises on one."""
