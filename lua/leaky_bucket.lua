-- leaky_bucket: `quota` units every `period` on average; `burst` pass at once, what is early by at
-- most `max_delay` waits for its turn.
--
-- Promises   Exact: what passes, each at the instant at which its wait is over, conforms to the
--            bucket: in any span of length t at most burst + t x quota / period units, where a
--            first request that costs more than the burst stands for the burst. Turns are told in
--            whole time units, rounded up: where a unit does not last whole ones, t is one more.
--            Nobody waits longer than `max_delay`, so at most max_delay x quota / period units
--            wait.
-- Numbers    quota (units), period (time units), burst (units), max_delay (time units), may_wait
--            (1, or 0 where whoever asks has no room for one more that waits: then only what passes
--            at once fits).
-- State      s1 + s2 / quota = the instant at which nothing was left, or will be when the last that
--            waits has passed (time units since 1970, s1 whole, s2 the remainder in 1 / quota
--            units): the theoretical arrival time (TAT) less a whole burst. What has flowed in
--            since, a burst at most, is left; an instant in the future is a queue. s3 = the instant
--            of the last write; 0 is absent: full. A last write in the future proves that the clock
--            stepped back: it starts again at full, from now, beside those that still wait.
-- Lifetime   One period beyond the instant at which all is back.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is written
--            (of the burst: those that would not wait), time units until it would fit (where it
--            does not; -1: never) or that it waits (where it fits; -1: not at all), time units
--            until all is back, the instant at which the state may be forgotten. Cost 0 is decided
--            as 1 and charges nothing.
-- give_back  (as every give_back) -> the state as it is, not changed: who came later has its turn
--            already, and a turn that came back would let two pass in one.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SET.
-- Source     The leaky bucket as a queue, as nginx' limit_req does it with burst and delay; the
--            schedule is ITU-T I.371's.
--
-- The level is counted in ticks of 1 / quota time units: one unit costs `period` ticks, a time unit
-- brings `quota` ticks, and burst x period + max_delay x quota <= 2^52, so every sum, product and
-- quotient below is a whole number that a double holds. A product that is larger is more than any
-- burst or any queue of these numbers, and comparing it is all that is done with it. All arguments
-- and answers are whole numbers below 2^53, so the same text gives the same answers in Redis' Lua
-- 5.1 and in LuaJIT. Pure: reads and writes nothing. The last line stands alone, as the driver's
-- generator needs it.

local function take(s1, s2, s3, now, cost, quota, period, burst, max_delay, may_wait)
  local full, waiting = burst * period, 0
  if may_wait == 1 then waiting = max_delay * quota end
  if s2 >= quota then s1, s2 = s1 + 1, 0 end
  local level = full
  local known = s3 > 0 and s3 <= now
  if known then
    level = (now - s1) * quota - s2
    if level > full then level = full end
  end
  local ask = cost
  if ask == 0 then ask = 1 end

  local fits, wait = 0, -1
  local lacking = ask * period - waiting - level
  if lacking <= 0 then
    fits = 1
    local early = ask * period - level
    level = level - cost * period
    if early > 0 then wait = (early + (quota - early % quota) % quota) / quota end
  elseif ask * period <= full + waiting then
    if known and s1 > now then
      -- The queue may be longer than these numbers could make it (they were edited): by instants,
      -- where nothing becomes too large.
      lacking = ask * period - waiting + s2
      wait = s1 - now
    else
      wait = 0
    end
    wait = wait + (lacking + (quota - lacking % quota) % quota) / quota
  end
  if fits == 0 and known and s1 > now then
    local missing = full + s2
    local reset = s1 - now + (missing + (quota - missing % quota) % quota) / quota
    return 0, s1, s2, s3, 0, wait, reset, now + reset + period
  end
  local left, missing = 0, full - level
  if level > 0 then left = (level - level % period) / period end
  local reset = (missing + (quota - missing % quota) % quota) / quota
  local rest = (quota - level % quota) % quota
  return fits, now - (level + rest) / quota, rest, now, left, wait, reset, now + reset + period
end

local function give_back(s1, s2, s3)
  return s1, s2, s3, 0, 0
end

return { take = take, give_back = give_back }
