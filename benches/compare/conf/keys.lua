-- wrk: a thousand callers, told apart by a key in a header, one after another.
local callers = 1000
local requests, turn = {}, 0

function init()
  for caller = 1, callers do
    requests[caller] = wrk.format("GET", nil,
      { ["Host"] = wrk.headers["Host"], ["X-Api-Key"] = string.format("key-%d", caller) })
  end
end

function request()
  turn = turn % callers + 1
  return requests[turn]
end
