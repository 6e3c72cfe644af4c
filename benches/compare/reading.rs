//! Reads the reports of the load generators. Pure: text in, figures out. Missing figures are
//! errors, never zeros.

/// What a generator measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub requests: u64,
    /// Responses whose status was neither 2xx nor 3xx.
    pub refused: u64,
    pub seconds: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// wrk's report, with `--latency`. Failed connections are an error.
pub fn wrk(text: &str) -> Result<Load, String> {
    let line = |wanted: &str| text.lines().map(str::trim).find(|line| line.contains(wanted));
    if let Some(errors) = line("Socket errors") {
        return Err(format!("connections failed: {errors}"));
    }
    let summary = line(" requests in ").ok_or("wrk has no number of requests")?;
    let (requests, rest) =
        summary.split_once(" requests in ").ok_or("wrk has no number of requests")?;
    let seconds = micros(rest.split(',').next().unwrap_or_default())? / 1e6;
    let percentile = |name: &str| {
        let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(name));
        line.map(str::trim).ok_or_else(|| format!("wrk has no {name}")).and_then(micros)
    };
    Ok(Load {
        requests: number(requests)?,
        refused: line("Non-2xx or 3xx responses:")
            .and_then(|line| line.split(':').nth(1))
            .map_or(Ok(0), number)?,
        seconds,
        p50_us: percentile("50%")?,
        p99_us: percentile("99%")?,
    })
}

/// h2load's report and its log, which has start, status and microseconds of each request.
pub fn h2load(text: &str, log: &str) -> Result<Load, String> {
    let line = |start: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(start))
            .ok_or_else(|| format!("h2load has no {start:?}"))
    };
    let before = |line: &str, what: &str| {
        let part = line.split(", ").find_map(|part| part.trim().strip_suffix(what));
        part.ok_or_else(|| format!("h2load has no {what:?}: {line}")).and_then(number)
    };
    let requests = line("requests: ")?;
    let broken = before(requests, " errored")? + before(requests, " timeout")?;
    if broken > 0 {
        return Err(format!("requests broke off: {requests}"));
    }
    let statuses = line("status codes: ")?;
    let (good, moved) = (before(statuses, " 2xx")?, before(statuses, " 3xx")?);
    let refused = before(statuses, " 4xx")? + before(statuses, " 5xx")?;
    let finished = line("finished in ")?;
    let mut latencies = log.lines().map(latency).collect::<Result<Vec<f64>, String>>()?;
    latencies.sort_by(f64::total_cmp);
    let share = |percent: usize| {
        latencies.get(latencies.len() * percent / 100).copied().ok_or("h2load logged no request")
    };
    Ok(Load {
        requests: good + moved + refused,
        refused,
        seconds: micros(finished.split(',').next().unwrap_or_default())? / 1e6,
        p50_us: share(50)?,
        p99_us: share(99)?,
    })
}

/// A line of its log: the start, the status, the microseconds.
fn latency(line: &str) -> Result<f64, String> {
    line.split('\t')
        .nth(2)
        .and_then(|micros| micros.trim().parse().ok())
        .ok_or_else(|| format!("a line of h2load's log: {line:?}"))
}

fn number(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("no number: {text:?}"))
}

/// `812.00us`, `1.23ms`, `2.10s`, `1.00m`.
fn micros(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (digits, unit) =
        text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len()));
    let scale = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return Err(format!("no duration: {text:?}")),
    };
    digits.parse::<f64>().map(|count| count * scale).map_err(|_| format!("no duration: {text:?}"))
}
