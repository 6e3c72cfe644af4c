//! What listeners show their clients, from one configuration to the next.

use std::sync::Arc;

use super::challenges;
use crate::listen::{self, Certificate};
use crate::telemetry::{Lint, LintKind, SettingError};

/// Keeps showing what these listeners, `before`, show of a certificate that is ordered, where its
/// file is gone or broken. A warning for each.
pub(super) fn keep(listeners: &mut [listen::Settings], before: &[listen::Settings]) -> Vec<Lint> {
    let mut lints = Vec::new();
    for listener in listeners {
        for (index, certificate) in listener.certificates.iter_mut().enumerate() {
            let Certificate::Ordered(ordered) = certificate else { continue };
            if ordered.own().is_some() {
                continue;
            }
            let mut known = before.iter().flat_map(|one| challenges::ordered(&one.certificates));
            let known = known.find_map(|known| known.own().filter(|_| known.file == ordered.file));
            let Some(shown) = known.cloned() else { continue };
            ordered.identity = Some(shown);
            let warning = SettingError::new(
                format!("{}.certificates[{index}]", listener.setting),
                format!("{}, which is gone or broken", ordered.file.display()),
                "a file that stays: what it held is shown until the new one is there, or a restart",
            );
            lints.push(Lint::of(LintKind::Certificate, &warning));
        }
    }
    lints
}

/// Certificates that clients refuse at this time, in Unix seconds, or soon will, and lists of
/// revoked ones that are too old. Also of what is kept, and was built long ago.
pub(super) fn old(tls: &[Option<Arc<listen::Tls>>], now_s: i64) -> impl Iterator<Item = Lint> {
    let warnings = tls.iter().flatten().flat_map(move |tls| tls.warnings(now_s));
    warnings.map(|warning| Lint::of(LintKind::Certificate, &warning))
}

/// Logs a warning for each that is [`old`], so that a proxy that is never reloaded says so too.
pub(super) fn warn_of_old(tls: &[Option<Arc<listen::Tls>>], now_s: i64) {
    for Lint { setting, text, remedy, .. } in old(tls, now_s) {
        tracing::warn!(setting, remedy, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_shown_stays_when_its_file_is_gone_or_broken() {
        let folder = tempfile::tempdir().unwrap();
        let text = "[[listeners]]\naddress = \"127.0.0.1:0\"\n\
             certificates = [{ acme = true, names = [\"a.example\"] }]\n\
             [acme]\naccept_terms_of_service = true\nfolder = \"acme\"\n\
             [[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
        let read = || {
            let config = Config::parse(text, &folder.path().join("proxy.toml"));
            config.unwrap_or_else(|found| panic!("{found}")).listeners
        };
        let ordered = |listeners: &[listen::Settings]| {
            challenges::ordered(&listeners[0].certificates).next().cloned().unwrap()
        };
        let mut none = read();
        assert!(keep(&mut none, &read()).is_empty());
        let file = ordered(&none).file;
        std::fs::create_dir(folder.path().join("acme")).unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        std::fs::write(&file, made.signing_key.serialize_pem() + &made.cert.pem()).unwrap();
        let before = read();
        let mut same = read();
        assert!(keep(&mut same, &none).is_empty() && keep(&mut same, &before).is_empty());
        assert_eq!(same, before);
        std::fs::write(&file, "broken").unwrap();
        let mut broken = read();
        assert_ne!(broken, before);
        let lints = keep(&mut broken, &before);
        assert_eq!((broken, lints.len()), (before.clone(), 1));
        std::fs::remove_file(&file).unwrap();
        let mut gone = read();
        assert!(ordered(&gone).identity.is_none());
        // Again and again.
        for _ in 0..2 {
            let lints = keep(&mut gone, &before);
            assert_eq!(lints.len(), 1);
            assert_eq!(gone, before);
            gone = read();
        }
    }
}
