-- The script of nginx + Lua + Redis: GCRA over one number, the theoretical arrival time in
-- microseconds. One GET, and one SET if it fits.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local arrival = tonumber(redis.call("GET", KEYS[1]) or 0)
if arrival < now then arrival = now end
local early = arrival + interval - now - burst * interval
if early > 0 then return {0, math.ceil(early / 1000000)} end
redis.call("SET", KEYS[1], string.format("%.3f", arrival + interval),
  "PX", math.ceil((arrival + interval - now) / 1000) + 1000)
return {1, 0}
