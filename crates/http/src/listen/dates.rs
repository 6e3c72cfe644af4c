//! When certificates and revocation lists are valid, and what is said of those that are not, or
//! soon won't be.

use std::path::PathBuf;

use x509_parser::time::ASN1Time;

use crate::telemetry::SettingError;

/// An end is near if less than one in so many parts of the whole time is left, and less than this,
/// in seconds.
const NEAR_PART: i64 = 10;
const NEAR_MAX_S: i64 = 7 * 86_400;

const VALID: &str = "a certificate that is valid today";
const RENEWED: &str = "a new one before that";
const NEWER_LIST: &str =
    "a list whose next update is to come: without one every client is turned away";

/// What is valid for a time.
#[derive(Debug)]
pub(super) struct Dated {
    /// The setting that names its file.
    pub(super) setting: String,
    pub(super) file: PathBuf,
    pub(super) kind: Kind,
    pub(super) from: ASN1Time,
    pub(super) to: ASN1Time,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Certificate,
    List,
}

impl Dated {
    /// What is to be said of it at this time, in Unix seconds.
    pub(super) fn warning(&self, now_s: i64) -> Option<SettingError> {
        let (from_s, to_s) = (self.from.timestamp(), self.to.timestamp());
        let near_s = (to_s.saturating_sub(from_s) / NEAR_PART).min(NEAR_MAX_S);
        let (file, from, to) = (self.file.display(), self.from, self.to);
        let (found, expected) = match self.kind {
            Kind::Certificate if from_s > now_s => (format!("{file}, valid from {from} on"), VALID),
            Kind::Certificate if to_s < now_s => (format!("{file}, which expired on {to}"), VALID),
            Kind::List if to_s < now_s => {
                (format!("{file}, a list that ended on {to}"), NEWER_LIST)
            }
            _ if to_s.saturating_sub(now_s) >= near_s => return None,
            Kind::Certificate => (format!("{file}, which expires on {to}"), RENEWED),
            Kind::List => (format!("{file}, a list that ends on {to}"), RENEWED),
        };
        Some(SettingError::new(self.setting.clone(), found, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_a_week_ahead_or_a_tenth_of_the_whole_time() {
        const DAY: i64 = 86_400;
        let told = |kind: Kind, days: i64, now_s: i64| {
            let time = |s: i64| ASN1Time::from_timestamp(s).unwrap();
            let (setting, file) = ("listeners[0]".to_owned(), "a.pem".into());
            let dated = Dated { setting, file, kind, from: time(DAY), to: time(DAY + days * DAY) };
            dated.warning(now_s).map(|warning| warning.found)
        };
        for (days, near_s) in [(10, DAY), (90, 7 * DAY), (3_650, 7 * DAY)] {
            let end_s = DAY + days * DAY;
            for kind in [Kind::Certificate, Kind::List] {
                assert_eq!(told(kind, days, end_s - near_s), None);
                let soon = told(kind, days, end_s - near_s + 1).unwrap();
                assert!(soon.contains("expires on") || soon.contains("ends on"), "{soon}");
                assert!(told(kind, days, end_s).is_some());
                let over = told(kind, days, end_s + 1).unwrap();
                assert!(over.contains("expired on") || over.contains("ended on"), "{over}");
            }
        }
        assert!(told(Kind::Certificate, 90, 0).unwrap().contains("valid from Jan  2"));
        // A list that was made ahead of time counts all the same.
        assert_eq!(told(Kind::List, 90, 0), None);
    }
}
