-- token_bucket: a bucket of `burst` tokens, refilled with `quota` tokens every `period`.
--
-- Promises   Exact: in any span of length t at most burst + t x quota / period units pass, with no
--            rounding error. Makes the same decisions as gcra.
-- Numbers    quota (tokens), period (time units), burst (tokens: the capacity), debt (tokens that
--            charges may take beyond what is left). Quota and period are divided by what they have
--            in common.
-- State      s1 = whole tokens (below zero: a debt), s2 = the remainder in 1 / period tokens, s3 =
--            the instant of both (time units since 1970, `last`). last = 0 means absent: full. A
--            `last` in the future proves that the clock stepped back: the bucket starts afresh,
--            full from now. Tokens above the burst (it was edited to less) are dropped, and so is a
--            remainder of period or more (the quota was edited).
-- Lifetime   One period beyond the instant at which the bucket is full again.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is
--            written, time units until it would fit (-1: it fits, or never can), time units until
--            all is back, the instant at which the state may be forgotten. Cost 0 is decided as 1
--            and takes nothing. A cost above the burst never fits.
-- give_back  (state, now, units, the instant of the take, numbers) -> new state, changed (0 or 1),
--            the instant at which it may be forgotten. Returns max(0, units x T - (now - taken)), T
--            = period / quota, and never above full (all 0).
-- charge     (state, now, units, numbers) -> new state, units charged, the instant at which the
--            state may be forgotten. Always charges, into debt if need be, as many units as the
--            debt has room for. 0 charged: nothing is to be written.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SET.
-- Source     The token bucket of RFC 2697 and ITU-T I.371, with an exact remainder.
--
-- The level is counted in ticks of 1 / period tokens: a token is `period` ticks, a time unit brings
-- `quota` ticks, and (burst + debt) x period <= 2^52 ticks, so every sum, product and quotient
-- below is a whole number that a double represents exactly. elapsed x quota may be larger. It is
-- then more than any bucket lacks, and is only compared. All arguments and answers are whole
-- numbers below 2^53, so the same text gives the same answers in Redis' Lua 5.1 and in LuaJIT.
-- Pure: the answers depend only on the arguments. The driver's generator needs the last line on its
-- own.

-- The most ticks that a bucket may lack, so that all numbers stay exact. Only a limit that was
-- edited while it was in debt may lack more.
local LACKING_MAX = 4503599627370496

local function take(s1, s2, s3, now, cost, quota, period, burst)
  local full = burst * period
  local level = full
  if s3 > 0 and s3 <= now then
    if s2 >= period then s2 = 0 end
    local before = s1 * period + s2
    local gained = (now - s3) * quota
    if gained < full - before then level = before + gained end
    if level < full - LACKING_MAX then level = full - LACKING_MAX end
  end
  local ask = cost
  if ask == 0 then ask = 1 end

  local fits, retry = 0, -1
  if ask <= burst then
    local lacking = ask * period - level
    if lacking <= 0 then
      fits = 1
      level = level - cost * period
    else
      retry = (lacking + (quota - lacking % quota) % quota) / quota
    end
  end
  local missing = full - level
  local reset = (missing + (quota - missing % quota) % quota) / quota
  local rest = level % period
  local tokens = (level - rest) / period
  local left = tokens
  if left < 0 then left = 0 end
  return fits, tokens, rest, now, left, retry, reset, now + reset + period
end

local function give_back(s1, s2, s3, now, units, taken_at, quota, period, burst)
  local full = burst * period
  local rest = s2
  if rest >= period then rest = 0 end
  local before = s1 * period + rest
  local gained = (now - s3) * quota
  if units > burst then units = burst end
  local back = units * period - (now - taken_at) * quota
  -- A take or a `last` in the future: the clock stepped back, and what was taken is no longer in
  -- this state.
  if s3 == 0 or s3 > now or taken_at > now or gained >= full - before or back <= 0 then
    return s1, s2, s3, 0, s3 + period
  end
  local level = before + gained
  if level < full - LACKING_MAX then level = full - LACKING_MAX end
  level = level + back
  if level >= full then return 0, 0, 0, 1, 0 end
  local missing = full - level
  local reset = (missing + (quota - missing % quota) % quota) / quota
  rest = level % period
  return (level - rest) / period, rest, now, 1, now + reset + period
end

local function charge(s1, s2, s3, now, units, quota, period, burst, debt)
  local full = burst * period
  local level = full
  if s3 > 0 and s3 <= now then
    local rest = s2
    if rest >= period then rest = 0 end
    local before = s1 * period + rest
    local gained = (now - s3) * quota
    if gained < full - before then level = before + gained end
    if level < full - LACKING_MAX then level = full - LACKING_MAX end
  end
  local room = level + debt * period
  if room < 0 then room = 0 end -- the debt was edited to less
  if units * period > room then units = (room - room % period) / period end
  if units == 0 then return s1, s2, s3, 0, 0 end
  level = level - units * period
  local missing = full - level
  local reset = (missing + (quota - missing % quota) % quota) / quota
  local rest = level % period
  return (level - rest) / period, rest, now, units, now + reset + period
end

return { take = take, give_back = give_back, charge = charge }
