//! What a manifest says besides the facts that the policy reads.

use super::super::abi::types;
use super::super::declared::{DeclaredLimit, Warning};
use super::{NAME_BYTES_MAX, algorithm, bounded, debt_of, is_name, limit_options, options};

/// Maximum number of limits that a policy may declare.
const LIMITS_MAX: usize = 4_096;
const WARNINGS_MAX: usize = 64;
/// Maximum number of facts from which one key may be made.
const KEY_FACTS_MAX: usize = 64;
/// Maximum size of a setting's path, and of a sentence, in bytes.
const PATH_BYTES_MAX: usize = 1_024;
const TEXT_BYTES_MAX: usize = 1_024;
/// Maximum number of settings that are shown with a warning.
const BESIDE_MAX: usize = 8;

/// Converts what a manifest declares. `scripts` are the names of the configured scripts.
pub(in super::super) fn declared(
    manifest: &mut types::Manifest,
    scripts: &[String],
) -> Result<(Vec<DeclaredLimit>, Vec<Warning>), String> {
    options("manifest", &manifest.options)?;
    let limits = std::mem::take(&mut manifest.limits);
    let warnings = std::mem::take(&mut manifest.warnings);
    for (what, count, most) in
        [("limits", limits.len(), LIMITS_MAX), ("warnings", warnings.len(), WARNINGS_MAX)]
    {
        if count > most {
            return Err(format!("manifest.{what}: {count} of them, at most {most}"));
        }
    }
    let limit = |(index, declared)| {
        limit(declared, scripts).map_err(|wrong| format!("manifest.limits[{index}]{wrong}"))
    };
    let warning = |(index, declared)| {
        warning(declared).map_err(|wrong| format!("manifest.warnings[{index}]{wrong}"))
    };
    Ok((
        limits.into_iter().enumerate().map(limit).collect::<Result<_, _>>()?,
        warnings.into_iter().enumerate().map(warning).collect::<Result<_, _>>()?,
    ))
}

/// Converts a declared limit. The error continues the path of the limit.
fn limit(declared: types::DeclaredLimit, scripts: &[String]) -> Result<DeclaredLimit, String> {
    let options =
        limit_options::read(&declared.options).map_err(|wrong| format!(".options{wrong}"))?;
    if !is_name(&declared.name) {
        return Err(format!(".name: not 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ -"));
    }
    bounded(".at", Some(&declared.at), PATH_BYTES_MAX)?;
    bounded(".key-prefix", Some(&declared.key_prefix), PATH_BYTES_MAX)?;
    bounded(".together", declared.together.as_deref(), PATH_BYTES_MAX)?;
    if declared.key_facts.len() > KEY_FACTS_MAX {
        let count = declared.key_facts.len();
        return Err(format!(".key-facts: {count} of them, at most {KEY_FACTS_MAX}"));
    }
    for fact in &declared.key_facts {
        bounded(".key-facts", Some(fact), PATH_BYTES_MAX)?;
    }
    let algorithm = algorithm(declared.algorithm, scripts)
        .map_err(|wrong| format!(".algorithm{wrong}"))
        .and_then(|algorithm| debt_of(algorithm, declared.debt))?;
    if let Some(breach) = algorithm.breaches().first() {
        let (setting, expected) = (breach.setting.key(), &breach.expected);
        return Err(format!(".algorithm: `{setting}` is {}, expected {expected}", breach.found));
    }
    Ok(DeclaredLimit {
        name: declared.name,
        at: declared.at,
        algorithm,
        key_facts: declared.key_facts,
        key_prefix: declared.key_prefix,
        together: declared.together,
        cost_max: declared.cost_max,
        lease: options.lease,
    })
}

/// Converts a declared warning. The error continues the path of the warning.
fn warning(declared: types::Warning) -> Result<Warning, String> {
    if !is_name(&declared.kind) {
        return Err(format!(".kind: not 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ -"));
    }
    let paths = declared.beside.iter().map(|(path, _)| (".beside", path));
    for (field, path) in paths.chain([(".path", &declared.path)]) {
        bounded(field, Some(path), PATH_BYTES_MAX)?;
    }
    let labels = declared.beside.iter().map(|(_, label)| (".beside", label));
    let remedy = declared.remedy.iter().map(|remedy| (".remedy", remedy));
    for (field, text) in labels.chain(remedy).chain([(".message", &declared.message)]) {
        bounded(field, Some(text), TEXT_BYTES_MAX)?;
        if text.chars().any(char::is_control) {
            return Err(format!("{field}: with control characters"));
        }
    }
    if declared.beside.len() > BESIDE_MAX {
        return Err(format!(".beside: {} of them, at most {BESIDE_MAX}", declared.beside.len()));
    }
    Ok(Warning {
        kind: declared.kind,
        at: declared.path,
        text: declared.message,
        beside: declared.beside,
        remedy: declared.remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> types::Manifest {
        types::Manifest {
            request_facts: Vec::new(),
            response_facts: Vec::new(),
            pure: false,
            limits: Vec::new(),
            warnings: Vec::new(),
            options: Vec::new(),
        }
    }

    fn limit(algorithm: types::Algorithm) -> types::DeclaredLimit {
        types::DeclaredLimit {
            name: "a".into(),
            at: "limits[0]".into(),
            algorithm,
            debt: None,
            key_facts: vec!["client-ip".into()],
            key_prefix: String::new(),
            together: None,
            cost_max: None,
            options: Vec::new(),
        }
    }

    fn warning(kind: &str, text: &str) -> types::Warning {
        let beside = vec![("b".into(), text.into())];
        let (kind, path) = (kind.into(), "a".into());
        types::Warning { kind, path, message: "m".into(), beside, remedy: None }
    }

    #[test]
    fn what_is_declared_is_checked_and_the_error_names_the_field() {
        let bucket = |amount, burst| {
            types::Algorithm::Gcra(types::Bucket { burst, rate: types::Rate { amount, per_ms: 1 } })
        };
        let good = types::Manifest {
            limits: vec![limit(bucket(1, 1))],
            warnings: vec![warning("cheap-others", "label")],
            ..manifest()
        };
        let (limits, warnings) = declared(&mut good.clone(), &[]).unwrap();
        assert_eq!((limits.len(), warnings.len()), (1, 1));
        for (part, wrong) in [
            (
                "manifest.limits: 4097",
                types::Manifest { limits: vec![limit(bucket(1, 1)); 4_097], ..good.clone() },
            ),
            (
                "manifest.warnings: 65",
                types::Manifest { warnings: vec![warning("a", "b"); 65], ..good.clone() },
            ),
            (
                "manifest.limits[0].algorithm: `quota`",
                types::Manifest { limits: vec![limit(bucket(1 << 53, 1))], ..good.clone() },
            ),
            (
                "manifest.warnings[0].kind",
                types::Manifest { warnings: vec![warning("a b", "c")], ..good.clone() },
            ),
            (
                "manifest.warnings[0].beside: with",
                types::Manifest { warnings: vec![warning("a", "\n")], ..good.clone() },
            ),
            (
                "manifest.options: found \"x\"",
                types::Manifest { options: vec![("x".into(), "1".into())], ..good.clone() },
            ),
            (
                "manifest.limits[0].options: found \"x\"",
                types::Manifest {
                    limits: vec![types::DeclaredLimit {
                        options: vec![("x".into(), String::new())],
                        ..limit(bucket(1, 1))
                    }],
                    ..good.clone()
                },
            ),
        ] {
            let message = declared(&mut wrong.clone(), &[]).unwrap_err();
            assert!(message.starts_with(part), "{part}: {message}");
        }
    }
}
