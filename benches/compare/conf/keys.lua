-- wrk: a thousand callers, one after another, each with its own key in a header.
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
