-- nginx + Lua + Redis, as it is usually written: a connection from the keepalive pool, one EVALSHA
-- for the client's address, and 429 if it refuses. It loads its script once and remembers the
-- digest. Unlike Weir it adds no RateLimit fields.
local redis = require "nginx.redis"

local _M = {}
local digest

local function call(connection, key)
  if digest then
    local answer, problem = connection:evalsha(digest, 1, key, "@INTERVAL_US@", "@BURST@")
    if answer or not string.find(problem or "", "NOSCRIPT", 1, true) then return answer, problem end
  end
  local problem
  digest, problem = connection:script("load", _M.script)
  if not digest then return nil, problem end
  return connection:evalsha(digest, 1, key, "@INTERVAL_US@", "@BURST@")
end

function _M.check()
  local connection = redis:new()
  connection:set_timeout(1000)
  local ok = connection:connect("@REDIS_HOST@", tonumber("@REDIS_PORT@"))
  if not ok then return ngx.exit(503) end
  local answer = call(connection, "limit:" .. ngx.var.remote_addr)
  if not answer then return ngx.exit(503) end
  connection:set_keepalive(60000, 64)
  if answer[1] == 0 then
    ngx.header["Retry-After"] = answer[2]
    return ngx.exit(429)
  end
end

return _M
