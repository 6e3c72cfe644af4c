-- gcra: `quota` units every `period` on average, and at most `burst` at once.
--
-- Promises   Exact: in any span of length t at most burst + t x quota / period units pass, with no rounding: 900 a second is 900 a
--            second for ever. The same decisions as token_bucket, in two integers.
-- Numbers    quota (units), period (time units), burst (units), fourth not used.
-- State      s1 + s2 / quota = TAT, the theoretical arrival time, in time units since 1970 (s1 whole, s2 the remainder in 1 / quota units),
--            s3 = 0. What lies ahead of now is debt. All 0, or any TAT in the past, is no debt: full.
--            A TAT further ahead than a whole burst can't have been written for this now and these numbers: the clock stepped back or the
--            limit was edited. It starts again at full, from now. A remainder of quota or more (the quota was edited) is rounded up.
-- Lifetime   One period beyond the TAT.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is written, time units until it would fit
--            (-1: it fits, or never can), time units until all is back, the instant at which the state may be forgotten.
--            Cost 0 is decided as 1 and charges nothing. A cost above the burst never fits.
-- give_back  (state, now, units, the instant of the take, numbers) -> new state, changed (0 or 1), the instant at which it may be
--            forgotten. Returns max(0, units x T - (now - taken)), T = period / quota: what has not flowed back by itself. Anything
--            simpler over-admits.
-- Memory     16 bytes of state and the key. Redis: the driver's one GET and, where it fits, one SET.
-- Source     ITU-T I.371, the Generic Cell Rate Algorithm in its virtual scheduling form.
--
-- Debt is counted in ticks of 1 / quota time units: one unit costs `period` ticks, a time unit pays back `quota` ticks, and a full burst is
-- burst x period <= 2^52 ticks, so every sum, product and quotient below is a whole number that a double holds, and (a - a % b) / b is the
-- exact quotient. A product that is larger belongs to a TAT that is too far ahead, and comparing it is all that is done with it.
-- All arguments and answers are whole numbers below 2^53, so the same text gives the same answers in Redis' Lua 5.1 and in LuaJIT.
-- Pure: reads and writes nothing. The last line stands alone, as the driver's generator needs it.

local function take(s1, s2, _, now, cost, quota, period, burst)
  local full = burst * period
  if s2 >= quota then s1, s2 = s1 + 1, 0 end
  local debt = 0
  if s1 >= now then
    debt = (s1 - now) * quota + s2
    if debt > full then debt = 0 end
  end
  local ask = cost
  if ask == 0 then ask = 1 end

  local fits, left, retry = 0, full - debt, -1
  if ask <= burst then
    local lacking = ask * period - left
    if lacking <= 0 then
      fits = 1
      debt = debt + cost * period
      left = full - debt
    else
      retry = (lacking + (quota - lacking % quota) % quota) / quota
    end
  end
  local rest = debt % quota
  local ahead = (debt - rest) / quota
  local reset = ahead
  if rest > 0 then reset = reset + 1 end
  return fits, now + ahead, rest, 0, (left - left % period) / period, retry, reset, now + reset + period
end

local function give_back(s1, s2, s3, now, units, taken_at, quota, period, burst)
  local whole, rest = s1, s2
  if rest >= quota then whole, rest = whole + 1, 0 end
  local debt = 0
  if whole >= now then debt = (whole - now) * quota + rest end
  if units > burst then units = burst end
  local back = units * period - (now - taken_at) * quota
  -- A take in the future, or a debt above full: the clock stepped back, and what was taken is no longer in this state.
  if debt == 0 or debt > burst * period or taken_at > now or back <= 0 then
    return s1, s2, s3, 0, s1 + period
  end
  debt = debt - back
  if debt < 0 then debt = 0 end
  rest = debt % quota
  whole = now + (debt - rest) / quota
  return whole, rest, 0, 1, whole + 1 + period
end

return { take = take, give_back = give_back }
