-- gcra: `quota` units every `period` on average, and at most `burst` at once.
--
-- Promises   Exact: in any span of length t at most burst + t x quota / period units pass, with no
--            rounding error: 900 a second stays 900 a second. Makes the same decisions as
--            token_bucket, from an instant instead of tokens. If callers use different bursts or
--            debts, as they do while an edit is rolled out, each counts what the others take, but
--            where a smaller bucket is full, the key is forgotten, and with it what a larger one
--            lacked. If they use different quotas, what each of them admits is within its own
--            limit, and no more: the time that units of a smaller quota take is read as more units
--            of a larger one, so together they may admit the sum of their limits.
-- Numbers    quota (units), period (time units), burst (units), debt (units that charges may take
--            beyond what is left). Quota and period are divided by what they have in common.
-- State      s1 + s2 / quota = the instant at which nothing was left, would have been, or will be
--            once a debt is paid (time units since 1970; s1 whole, s2 the remainder in 1 / quota
--            units): the theoretical arrival time (TAT) minus a whole burst. What has flowed in
--            since, a burst at most, is left. It does not depend on the burst, so that a limit may
--            be edited. It may be negative, for an instant before 1970. s3 = the instant of the
--            last write; 0 means absent: full. A last write in the future proves that the clock
--            stepped back: the bucket starts afresh, full from now. (An instant in the future does
--            not: it is a debt.) A remainder of quota or more (the quota was edited) is rounded up.
-- Lifetime   One period beyond the instant at which all is back.
-- take       (state, now, cost, numbers) -> fits (0 or 1), new state, units left if this is
--            written, time units until it would fit (-1: it fits, or never can), time units until
--            all is back, the instant at which the state may be forgotten. Cost 0 is decided as 1
--            and charges nothing. A cost above the burst never fits.
-- give_back  (state, now, units, the instant of the take, numbers) -> new state, changed (0 or 1),
--            the instant at which it may be forgotten. Returns max(0, units x T - (now - taken)), T
--            = period / quota, and never above full (all 0): what cannot have flowed back by
--            itself. Returning more would over-admit. So would using the level that the take found
--            to count only what overflowed: units charged by another take before that may have come
--            back since.
-- charge     (state, now, units, numbers) -> new state, units charged, the instant at which the
--            state may be forgotten. Always charges, into debt if need be, as many units as the
--            debt has room for. 0 charged: nothing is to be written.
-- Memory     24 bytes of state and the key. Redis: the driver's one GET and, where it fits, one
--            SET.
-- Source     ITU-T I.371, the Generic Cell Rate Algorithm in its virtual scheduling form, its TAT
--            moved by the burst.
--
-- The level is counted in ticks of 1 / quota time units: one unit costs `period` ticks, a time unit
-- brings `quota` ticks, and (burst + debt) x period <= 2^52 ticks, so every sum, product and
-- quotient below is a whole number that a double represents exactly. A larger product exceeds any
-- burst, and is only compared. All arguments and answers are whole numbers below 2^53, so the same
-- text gives the same answers in Redis' Lua 5.1 and in LuaJIT. Pure: the answers depend only on the
-- arguments. The driver's generator needs the last line on its own.

-- The most ticks that a bucket may lack, so that all numbers stay exact. Only a limit that was
-- edited while it was in debt may lack more.
local LACKING_MAX = 4503599627370496

local function take(s1, s2, s3, now, cost, quota, period, burst)
  local full = burst * period
  local level = full
  if s3 > 0 and s3 <= now then
    if s2 >= quota then s1, s2 = s1 + 1, 0 end
    level = (now - s1) * quota - s2
    if level > full then level = full end
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
  local rest = (quota - level % quota) % quota
  local whole = now - (level + rest) / quota
  local left = 0
  if level > 0 then left = (level - level % period) / period end
  return fits, whole, rest, now, left, retry, reset, now + reset + period
end

local function give_back(s1, s2, s3, now, units, taken_at, quota, period, burst)
  local full = burst * period
  local whole, rest = s1, s2
  if rest >= quota then whole, rest = whole + 1, 0 end
  local level = (now - whole) * quota - rest
  if level < full - LACKING_MAX then level = full - LACKING_MAX end
  if units > burst then units = burst end
  local back = units * period - (now - taken_at) * quota
  -- A take or a last write in the future: the clock stepped back, and what was taken is no longer
  -- in this state.
  local unknown = s3 == 0 or s3 > now or taken_at > now
  if unknown or level >= full or back <= 0 then return s1, s2, s3, 0, 0 end
  level = level + back
  if level >= full then return 0, 0, 0, 1, 0 end
  local missing = full - level
  rest = (quota - level % quota) % quota
  whole = now - (level + rest) / quota
  return whole, rest, now, 1, now + (missing + (quota - missing % quota) % quota) / quota + period
end

local function charge(s1, s2, s3, now, units, quota, period, burst, debt)
  local full = burst * period
  local level = full
  if s3 > 0 and s3 <= now then
    local whole, rest = s1, s2
    if rest >= quota then whole, rest = whole + 1, 0 end
    level = (now - whole) * quota - rest
    if level > full then level = full end
    if level < full - LACKING_MAX then level = full - LACKING_MAX end
  end
  local room = level + debt * period
  if room < 0 then room = 0 end -- the debt was edited to less
  if units * period > room then units = (room - room % period) / period end
  if units == 0 then return s1, s2, s3, 0, 0 end
  level = level - units * period
  local missing = full - level
  local rest = (quota - level % quota) % quota
  local reset = (missing + (quota - missing % quota) % quota) / quota
  return now - (level + rest) / quota, rest, now, units, now + reset + period
end

return { take = take, give_back = give_back, charge = charge }
