"""A policy in Python: more requests a minute from each address outside of office hours."""

import json
from dataclasses import dataclass

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import host
from wit_world.imports.types import (
    Algorithm_Gcra,
    Bucket,
    Decision,
    DeclaredLimit,
    Enforcement,
    Fallback,
    Limit,
    Manifest,
    Mistake,
    Rate,
    Refund,
    Settlement,
    Verdict_Check,
)

MINUTE_MS = 60_000
DAY_MINUTES = 24 * 60
DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


@dataclass
class Hours:
    """The configuration."""

    days: list[str]
    start: int
    end: int
    zone: str
    inside: int
    outside: int

    def limit_at(self, now: host.DateTime) -> tuple[str, int]:
        """The name of the limit that applies then, and its requests a minute."""
        day, minutes = DAYS[now.weekday - 1], now.hour * 60 + now.minute
        if day in self.days and self.start <= minutes < self.end:
            return "inside", self.inside
        return "outside", self.outside

    def change_after(self, now: host.DateTime, now_ms: int) -> int:
        """When another limit may apply, in milliseconds since 1970."""
        since_midnight = (now.hour * 60 + now.minute) * MINUTE_MS + now.second * 1_000
        midnight_ms = now_ms - now_ms % 1_000 - since_midnight
        times = [midnight_ms + at * MINUTE_MS for at in (self.start, self.end, DAY_MINUTES)]
        # The clocks may be changed before that.
        times += [now.offset_until_ms] if now.offset_until_ms is not None else []
        return min(at for at in times if at > now_ms)


class Reader:
    """Takes settings out of a configuration, and collects what is wrong with them."""

    def __init__(self, config: dict):
        self.config = config
        self.mistakes: list[Mistake] = []

    def wrong(self, path: str, found, expected: str):
        self.mistakes.append(Mistake(path, f"found {json.dumps(found)}, expected {expected}"))

    def quota(self, key: str) -> int:
        value = self.config.pop(key, None)
        if type(value) is not int or not 0 <= value <= 1_000_000:
            self.wrong(key, value, "requests a minute, 0 to 1000000")
            return 0
        return value

    def minutes(self, key: str, default: str) -> int:
        """`HH:MM` as minutes."""
        value = self.config.pop(key, default)
        text = value if isinstance(value, str) else ""
        hours, colon, minutes = text.partition(":")
        if not (colon and hours.isdecimal() and minutes.isdecimal() and len(text) <= 5):
            self.wrong(key, value, f'a time such as "{default}"')
            return 0
        all_minutes = int(hours) * 60 + int(minutes)
        if int(minutes) > 59 or all_minutes > DAY_MINUTES:
            self.wrong(key, value, "at most 24:00")
        return all_minutes

    def zone(self) -> str:
        zone = self.config.pop("time_zone", "UTC")
        if not isinstance(zone, str) or host.local_time(zone) is None:
            self.wrong("time_zone", zone, 'a time zone such as "Europe/Berlin"')
        return zone

    def days(self) -> list[str]:
        days = self.config.pop("days", DAYS[:5])
        if not isinstance(days, list):
            self.wrong("days", days, "a list of days")
            return []
        for index, day in enumerate(days):
            if day not in DAYS:
                self.wrong(f"days[{index}]", day, f"one of {', '.join(DAYS)}")
        return days


hours: Hours


def algorithm(quota: int) -> Algorithm_Gcra:
    return Algorithm_Gcra(Bucket(burst=quota, rate=Rate(quota, MINUTE_MS)))


def declared(name: str, quota: int) -> DeclaredLimit:
    """What the proxy is told of a limit, for `weir check` and `weir key`."""
    return DeclaredLimit(
        name=name,
        at=name,
        algorithm=algorithm(quota),
        debt=None,
        key_facts=["client-ip"],
        key_prefix="",
        together=None,
        cost_max=None,
        options=[],
    )


class Handler(exports.Handler):
    def configure(self, config: str) -> Manifest:
        global hours
        reader = Reader(json.loads(config))
        hours = Hours(
            days=reader.days(),
            start=reader.minutes("from", "08:00"),
            end=reader.minutes("until", "18:00"),
            zone=reader.zone(),
            inside=reader.quota("inside"),
            outside=reader.quota("outside"),
        )
        for key in reader.config:
            reader.mistakes.append(Mistake(key, f"found the unknown key `{key}`, expected none"))
        if reader.mistakes:
            raise Err(reader.mistakes)
        # The same address is decided in the same way until the time that a decision tells.
        return Manifest(
            request_facts=["client-ip"],
            response_facts=[],
            pure=True,
            limits=[declared("inside", hours.inside), declared("outside", hours.outside)],
            warnings=[],
            options=[],
        )

    def decide(self, facts: list[tuple[str, str]]) -> Decision:
        address = dict(facts).get("client-ip")
        if address is None:
            raise Err("no client address")
        now, now_ms = host.local_time(hours.zone), host.now_ms()
        if now is None:
            raise Err("no such time zone")
        name, quota = hours.limit_at(now)
        limit = Limit(
            name=name,
            key=address,
            tag=None,
            algorithm=algorithm(quota),
            cost=1,
            unit=None,
            enforcement=Enforcement.ENFORCE,
            refund=Refund.NEVER,
            debt=None,
            on_store_error=Fallback.ROUTE_DEFAULT,
            options=[],
        )
        return Decision(
            verdict=Verdict_Check([limit]),
            upstream_headers=[],
            response_headers=[],
            labels=[("hours", name)],
            settle_with=None,
            settle_on_refusal=False,
            body_changes=[],
            metering=None,
            valid_until_ms=hours.change_after(now, now_ms),
            options=[],
        )

    def settle(self, memo: str, response) -> Settlement:
        # Never called: no decision has `settle_with`.
        return Settlement(adjustments=[], labels=[], amounts=[], options=[])
