"""The `$cmroot`s that may be asked about: those of the configuration, by the names of their keys. No client gives a
path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cmroot.root import FORMAT
from cmroot.store.resolve import as_written
from replicator.core.config import Config, nearest
from replicator.errors import Error, ObjectNotFound, UsageError
from replicator.service.auth.api_tokens import Identity
from replicator.service.web.permission import require

OPTIONS = ("cmroot", "source_cmroot", "target_cmroot")


@dataclass(frozen=True)
class NamedRoot:
    """name: such as "policies/west/cmroot". policies: all of which some key names this place."""

    name: str
    place: str
    policies: tuple[str, ...]

    def may(self, who: Identity) -> bool:
        """Whether somebody may look at all that is in there."""
        return all(who.may("viewer", each) for each in self.policies or ("",))


def roots_of(config: Config) -> list[NamedRoot]:
    """By name: of policies, of [defaults], and of jobs with such an option."""
    places = dict(_places(config))
    found = []
    for name, place in sorted(places.items()):
        users = {
            other.split("/")[1] for other, each in places.items() if each == place and other.startswith("policies/")
        }
        found.append(NamedRoot(name, place, tuple(sorted(users))))
    return found


def _places(config: Config) -> Iterator[tuple[str, str]]:
    for name, policy in config.policies.items():
        yield f"policies/{name}/cmroot", normal_place(policy.cmroot)
        yield f"policies/{name}/target_cmroot", normal_place(policy.target_cmroot)
    for option in OPTIONS:
        place = getattr(config.defaults, option)
        if place:
            yield f"defaults/{option}", normal_place(place)
    for name, job in config.service.jobs.items():
        for option in OPTIONS:
            given = option_of(job.command, f"--{option.replace('_', '-')}")
            if given:
                yield f"jobs/{name}/{option}", normal_place(given)


def option_of(command: tuple[str, ...], option: str) -> str:
    """What a command line gives an option; "" for nothing."""
    for index, word in enumerate(command):
        if word == option:
            return command[index + 1] if index + 1 < len(command) else ""
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def normal_place(place: str) -> str:
    """One spelling of a place of the configuration: roots are the same whose normal places are. What is no place stays
    as it is."""
    try:
        return str(as_written(place))
    except (Error, OSError):
        return place


def root_for(config: Config, who: Identity, name: str | None) -> NamedRoot:
    """The root of a name; None: that of [defaults], else the only one that somebody may see. Raises HTTPException 401
    or 403, ObjectNotFound for another name and for a place that is no root yet, UsageError where several are meant."""
    there = roots_of(config)
    if name is None:
        wanted = [each for each in there if each.name == "defaults/cmroot"] or [each for each in there if each.may(who)]
        if len({each.place for each in wanted}) != 1:
            names = ", ".join(each.name for each in wanted) or "none is configured"
            raise UsageError("which root is meant?", hint=f"root=NAME, one of: {names}")
        found = wanted[0]
    else:
        named = next((each for each in there if each.name == name), None)
        if named is None:
            if who.policies:  # do not tell which names there are
                require(who, "viewer", "")
            known = ", ".join(each.name for each in there) or "none is configured"
            hint = nearest(name, [each.name for each in there]) + f"names: {known}; paths are no names"
            raise ObjectNotFound(f"no root of the configuration is called {name!r}", hint=hint)
        found = named
    for each in found.policies or ("",):
        require(who, "viewer", each)
    return found


def refuse_none_yet(place: str) -> None:
    """Raises ObjectNotFound where nothing has made it yet."""
    if not (as_written(place) / FORMAT).exists():
        raise ObjectNotFound(f"{place} is no $cmroot yet", hint="the first run that writes there makes it")
