-- leaky_bucket: `quota` units every `period` on average; `burst` pass at once, what is early by at most `max_delay` waits for its
-- turn.
--
-- Promises   Exact: what passes, each at the instant at which its wait is over, conforms to the bucket: in any span of length t at
--            most burst + t x quota / period units, where a first request that costs more than the burst stands for the burst. Turns
--            are told in whole time units, rounded up: where a unit does not last whole ones, t is one more. Nobody waits longer than
--            `max_delay`, so at most max_delay x quota / period units wait.
-- Numbers    quota (units), period (time units), burst (units), max_delay (time units), may_wait (1, or 0 where whoever asks has no
--            room for one more that waits: then only what passes at once fits).
-- State      s1 + s2 / quota = TAT, the theoretical arrival time, in time units since 1970 (s1 whole, s2 the remainder in 1 / quota
--            units), s3 = 0. What lies ahead of now is debt; above a whole burst it is what waits. All 0, or any TAT in the past, is
--            no debt: full. A TAT further ahead than a whole burst and `max_delay` can't have been written for this now and these
--            numbers: the clock stepped back or the limit was edited. It starts again at full, from now. A remainder of quota or more
--            (the quota was edited) is rounded up.
-- Lifetime   One period beyond the TAT.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is written (of the burst: those that would
--            not wait), time units until it would fit (where it does not; -1: never) or that it waits (where it fits; -1: not at
--            all), time units until all is back, the instant at which the state may be forgotten. Cost 0 is decided as 1 and charges
--            nothing.
-- give_back  (as every give_back) -> the state as it is, not changed: who came later has its turn already, and a turn that came back
--            would let two pass in one.
-- Memory     16 bytes of state and the key. Redis: the driver's one GET and, where it fits, one SET.
-- Source     The leaky bucket as a queue, as nginx' limit_req does it with burst and delay; the schedule is ITU-T I.371's.
--
-- Debt is counted in ticks of 1 / quota time units: one unit costs `period` ticks, a time unit pays back `quota` ticks, and burst x
-- period + max_delay x quota <= 2^52, so every sum, product and quotient below is a whole number that a double holds. A product that
-- is larger belongs to a TAT that is too far ahead, and comparing it is all that is done with it. All arguments and answers are whole
-- numbers below 2^53, so the same text gives the same answers in Redis' Lua 5.1 and in LuaJIT. Pure: reads and writes nothing. The
-- last line stands alone, as the driver's generator needs it.

local function take(s1, s2, _, now, cost, quota, period, burst, max_delay, may_wait)
  local full = burst * period
  local most = full + max_delay * quota
  if s2 >= quota then s1, s2 = s1 + 1, 0 end
  local debt = 0
  if s1 >= now then
    debt = (s1 - now) * quota + s2
    if debt > most then debt = 0 end
  end
  local ask = cost
  if ask == 0 then ask = 1 end

  local fits, wait = 0, -1
  local passes = full
  if may_wait == 1 then passes = most end
  local lacking = debt + ask * period - passes
  if lacking <= 0 then
    fits = 1
    local early = debt + ask * period - full
    debt = debt + cost * period
    if early > 0 then wait = (early + (quota - early % quota) % quota) / quota end
  elseif ask * period <= passes then
    wait = (lacking + (quota - lacking % quota) % quota) / quota
  end
  local left = 0
  if debt < full then left = (full - debt - (full - debt) % period) / period end
  local rest = debt % quota
  local ahead = (debt - rest) / quota
  local reset = ahead
  if rest > 0 then reset = reset + 1 end
  return fits, now + ahead, rest, 0, left, wait, reset, now + reset + period
end

local function give_back(s1, s2, s3, _, _, _, _, period)
  return s1, s2, s3, 0, s1 + period
end

return { take = take, give_back = give_back }
