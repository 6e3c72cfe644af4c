//! The lines of a log: client and time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// A request of the log.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The value of `X-Forwarded-For`: the log's own text, or an address made up for a name.
    pub(super) address: String,
    /// The client that is charged: an IPv4 address, or an IPv6 network of 64 bits.
    pub(super) client: String,
    /// Seconds since 1970.
    pub(super) at_s: i64,
}

/// A whole log, in its order.
pub(super) struct Log {
    pub(super) path: PathBuf,
    pub(super) lines: Vec<Line>,
}

impl Log {
    pub(super) fn read() -> Self {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small.log");
        let path = std::env::var_os("WEIR_TRACE").map_or(ours, PathBuf::from);
        // Old logs contain arbitrary bytes.
        let text =
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (text, mut names) = (String::from_utf8_lossy(&text).into_owned(), BTreeMap::new());
        let lines: Vec<Line> = text
            .lines()
            .map(|line| {
                read_line(line, &mut names).unwrap_or_else(|| panic!("no log's line: {line:?}"))
            })
            .collect();
        assert!(!lines.is_empty(), "{} is empty", path.display());
        Self { path, lines }
    }

    /// How many requests each client makes.
    pub(super) fn clients(&self) -> BTreeMap<&str, u64> {
        let mut clients = BTreeMap::new();
        self.lines.iter().for_each(|line| *clients.entry(line.client.as_str()).or_default() += 1);
        clients
    }

    pub(super) fn told(&self) -> String {
        format!(
            "{}: {} requests of {} clients",
            self.path.display(),
            self.lines.len(),
            self.clients().len()
        )
    }
}

/// `HOST - - [17/May/2015:10:05:03 +0000] ...`. Each host name gets a network of its own in the
/// second half of the range for documentation.
fn read_line(line: &str, names: &mut BTreeMap<String, u16>) -> Option<Line> {
    let (host, rest) = line.split_once(' ')?;
    let stamp = rest.split_once('[')?.1.split_once(']')?.0;
    let (address, client) = match host.parse() {
        Ok(IpAddr::V4(address)) => (host.to_owned(), address.to_string()),
        Ok(IpAddr::V6(address)) => (host.to_owned(), network(address)),
        Err(_) => {
            let next = u16::try_from(names.len()).ok()?;
            let number = *names.entry(host.to_owned()).or_insert(next);
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0x8000, number, 0, 0, 0, 1);
            (address.to_string(), network(address))
        }
    };
    Some(Line { address, client, at_s: seconds(stamp)? })
}

fn network(address: Ipv6Addr) -> String {
    let words = address.segments();
    format!("{:x}:{:x}:{:x}:{:x}::/64", words[0], words[1], words[2], words[3])
}

/// `17/May/2015:10:05:03 +0000` in seconds since 1970.
fn seconds(stamp: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (time, zone) = stamp.split_once(' ')?;
    let mut parts = time.splitn(3, '/');
    let (day, month, rest) = (parts.next()?.parse::<i64>().ok()?, parts.next()?, parts.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let numbers: Vec<i64> =
        rest.split(':').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [year, hour, minute, second] = numbers[..] else { return None };
    let (sign, zone) =
        (if zone.starts_with('-') { -1 } else { 1 }, zone.trim_start_matches(['+', '-']));
    let offset_s = sign
        * (zone.get(..2)?.parse::<i64>().ok()? * 3600 + zone.get(2..)?.parse::<i64>().ok()? * 60);
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset_s)
}

/// Days since 1970 of a date, by counting leap years.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    (1970..year).map(|year| if leap(year) { 366 } else { 365 }).sum::<i64>()
        + lengths[..month as usize - 1].iter().sum::<i64>()
        + day
        - 1
}

#[test]
fn a_logs_line_is_read() {
    let mut names = BTreeMap::new();
    let mut read = |host: &str, stamp: &str| {
        let line = read_line(&format!("{host} - - [{stamp}] \"GET / HTTP/1.0\" 200 7"), &mut names)
            .unwrap();
        (line.address, line.client, line.at_s)
    };
    let first = ("192.0.2.7".to_owned(), "192.0.2.7".to_owned(), 1_431_857_103);
    assert_eq!(read("192.0.2.7", "17/May/2015:10:05:03 +0000"), first);
    assert_eq!(read("192.0.2.7", "17/May/2015:06:05:03 -0400"), first);
    assert_eq!(read("2001:db8::7", "29/Feb/2000:00:00:00 +0130").2, 951_777_000);
    assert_eq!(
        read("2001:DB8:0::7", "01/Jan/1970:00:00:00 +0000"),
        ("2001:DB8:0::7".into(), "2001:db8:0:0::/64".into(), 0)
    );
    let name = read("unicomp6.example", "01/Jan/1970:00:00:00 +0000");
    assert_eq!(name.1, "2001:db8:8000:0::/64");
    assert_ne!(read("other.example", "01/Jan/1970:00:00:00 +0000").1, name.1);
    assert_eq!(read("unicomp6.example", "01/Jan/1970:00:00:00 +0000"), name);
}
