-- The algorithms are pure: no global of Redis, none of LuaJIT, nothing that only one of the two has.
std = "min"
globals = {}
max_line_length = 140
max_cyclomatic_complexity = 20
cache = false
