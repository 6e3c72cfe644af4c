"""What examples/clients/python/weir.py does with a real Weir.

    decision_client.py WEIR_URL UNREACHABLE_URL
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/clients/python"))

from weir import Weir, WeirError  # noqa: E402

weir = Weir(sys.argv[1], timeout=5)
user = {"user": "python"}
assert weir.look("users", entries=user).limits[0]["remaining"] == 3
first = weir.decide("users", entries=user, idempotency_key="p1")
assert first == weir.decide("users", entries=user, idempotency_key="p1") and first.allowed, first
assert weir.look("users", entries=user).limits[0]["remaining"] == 2
held = weir.decide("users", entries=user, hits=2, hold_ms=60_000)
refused = weir.decide("users", entries=user)
assert not refused.allowed and refused.status == 429 and refused.refused_by == ("user",), refused
assert dict(refused.fields)["retry-after"] and refused.retry_after_ms > 0 and refused.body, refused
assert weir.give_back(held.id) and not weir.give_back(held.id)
held = weir.decide("users", entries=user, hold_ms=60_000)
assert weir.settle(held.id, status=204) and not weir.settle(held.id)
held = weir.decide("users", entries={"user": "p3"}, hold_ms=60_000)
assert weir.settle(held.id, outcome="client-gone")
one = [{"name": "own", "algorithm": "fixed_window", "quota": 1, "period": "1d"}]
assert [weir.take("users", user, one).allowed for _ in range(2)] == [True, False]
calls = [{"domain": "users", "entries": {"user": "p2"}} for _ in range(4)]
assert [answer.allowed for answer in weir.batch("/v1/decide", calls)] == [True, True, True, False]
try:
    weir.decide("nobody")
    raise AssertionError("a domain that nobody has")
except WeirError as error:
    assert error.status == 404, error
for on_error, allowed in [("deny", False), ("allow", True)]:
    fallen = Weir(sys.argv[2], on_error=on_error).decide("users", entries=user)
    assert fallen.allowed == allowed and fallen.degraded == "unreachable", fallen
print("done")
