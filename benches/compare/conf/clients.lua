-- wrk: a thousand clients, one after another, each with its own X-Forwarded-For.
local clients = 1000
local requests, turn = {}, 0

function init()
  for client = 1, clients do
    local address = string.format("10.1.%d.%d", math.floor(client / 250), client % 250 + 1)
    requests[client] = wrk.format("GET", nil,
      { ["Host"] = wrk.headers["Host"], ["X-Forwarded-For"] = address })
  end
end

function request()
  turn = turn % clients + 1
  return requests[turn]
end
