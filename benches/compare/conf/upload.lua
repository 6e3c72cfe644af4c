-- wrk: each request carries 1 MiB.
wrk.method = "POST"
wrk.body = string.rep("x", 1048576)
wrk.headers["Content-Type"] = "application/octet-stream"
