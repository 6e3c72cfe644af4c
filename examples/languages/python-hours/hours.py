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
    offset: int
    inside: int
    outside: int

    def limit_at(self, now_ms: int) -> tuple[str, int]:
        """The name of the limit that applies then, and its requests a minute."""
        minutes = now_ms // MINUTE_MS + self.offset
        # 1 January 1970 was a Thursday.
        day = DAYS[(minutes // DAY_MINUTES + 3) % 7]
        if day in self.days and self.start <= minutes % DAY_MINUTES < self.end:
            return "inside", self.inside
        return "outside", self.outside


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
        """`HH:MM` as minutes, perhaps with a sign."""
        value = self.config.pop(key, default)
        text = value if isinstance(value, str) else ""
        hours, colon, minutes = text.lstrip("+-").partition(":")
        if not (colon and hours.isdecimal() and minutes.isdecimal() and len(text) <= 6):
            self.wrong(key, value, f'a time such as "{default}"')
            return 0
        all_minutes = int(hours) * 60 + int(minutes)
        if int(minutes) > 59 or all_minutes > DAY_MINUTES:
            self.wrong(key, value, "at most 24:00")
        return -all_minutes if text.startswith("-") else all_minutes

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


class Handler(exports.Handler):
    def configure(self, config: str) -> Manifest:
        global hours
        reader = Reader(json.loads(config))
        hours = Hours(
            days=reader.days(),
            start=reader.minutes("from", "08:00"),
            end=reader.minutes("until", "18:00"),
            offset=reader.minutes("utc_offset", "+00:00"),
            inside=reader.quota("inside"),
            outside=reader.quota("outside"),
        )
        for key in reader.config:
            reader.mistakes.append(Mistake(key, f"found the unknown key `{key}`, expected none"))
        if reader.mistakes:
            raise Err(reader.mistakes)
        # Not pure: the same address is decided differently later.
        return Manifest(request_facts=["client-ip"], response_facts=[], pure=False)

    def decide(self, facts: list[tuple[str, str]]) -> Decision:
        address = dict(facts).get("client-ip")
        if address is None:
            raise Err("no client address")
        name, quota = hours.limit_at(host.now_ms())
        limit = Limit(
            name=name,
            key=address,
            tag=None,
            algorithm=Algorithm_Gcra(Bucket(burst=quota, rate=Rate(quota, MINUTE_MS))),
            cost=1,
            unit=None,
            enforcement=Enforcement.ENFORCE,
            refund=Refund.NEVER,
            debt=None,
            on_store_error=Fallback.ROUTE_DEFAULT,
        )
        return Decision(
            verdict=Verdict_Check([limit]),
            upstream_headers=[],
            response_headers=[],
            labels=[("hours", name)],
            settle_with=None,
            settle_on_refusal=False,
            body_changes=[],
            meters=[],
            read_on_ms=0,
            partial=None,
            hard_cut=None,
        )

    def settle(self, memo: str, response) -> Settlement:
        # Never called: no decision has `settle_with`.
        return Settlement(adjustments=[], labels=[], amounts=[])
