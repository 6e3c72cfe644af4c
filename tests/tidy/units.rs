//! Whether anything is compiled twice for want of one feature. Cargo says nothing of it: a test's
//! dependency turns a feature on, and `make test` builds wasmtime again that `make run` has built.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Built twice, in a few seconds each: once for macros, with other features than for the program.
pub const TWICE: [&str; 7] = [
    "cranelift-bitset",
    "libc",
    "proc-macro2",
    "pulley-interpreter",
    "quote",
    "syn",
    "wasmtime-internal-core",
];

/// What cargo would compile.
pub struct Units {
    units: Vec<Unit>,
}

struct Unit {
    /// Name, version and source.
    package: String,
    /// What else makes it another compilation: the kind of target, features, and the profile.
    how: String,
    library: bool,
    uses: Vec<usize>,
}

impl Units {
    /// Those of a command of cargo. A stable cargo lists them only if it is told to.
    pub fn of(command: &[&str]) -> Self {
        let output = Command::new(env!("CARGO"))
            .env("RUSTC_BOOTSTRAP", "1")
            // With a target of its own, everything that macros use would be compiled once more.
            .env_remove("CARGO_BUILD_TARGET")
            .args(command)
            .args(["--locked", "-Z", "unstable-options", "--unit-graph"])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo does not list its units: {errors}");
        Self::read(&serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Reads what `--unit-graph` prints.
    pub fn read(graph: &Value) -> Self {
        let units = graph["units"].as_array().unwrap().iter().map(|unit| {
            let mut profile = unit["profile"].clone();
            // `test` and `dev` are one profile with two names.
            profile.as_object_mut().unwrap().remove("name");
            let kind = &unit["target"]["kind"];
            let uses = unit["dependencies"].as_array().unwrap().iter();
            Unit {
                package: unit["pkg_id"].as_str().unwrap().to_owned(),
                how: format!("{kind} {} {} {profile}", unit["mode"], unit["features"]),
                library: kind == &serde_json::json!(["lib"]) && unit["mode"] == "build",
                uses: uses.map(|used| used["index"].as_u64().unwrap() as usize).collect(),
            }
        });
        Self { units: units.collect() }
    }

    /// For each unit a number that two units share if they are one compilation, by what they are
    /// and by all that they use. `numbers` is common to the graphs that are compared.
    fn identities(&self, numbers: &mut BTreeMap<String, usize>) -> Vec<usize> {
        let mut found = vec![None; self.units.len()];
        for unit in 0..self.units.len() {
            self.identify(unit, numbers, &mut found);
        }
        found.into_iter().flatten().collect()
    }

    fn identify(
        &self,
        unit: usize,
        numbers: &mut BTreeMap<String, usize>,
        found: &mut [Option<usize>],
    ) -> usize {
        if let Some(number) = found[unit] {
            return number;
        }
        let Unit { package, how, uses, .. } = &self.units[unit];
        let mut uses: Vec<usize> =
            uses.iter().map(|used| self.identify(*used, numbers, found)).collect();
        uses.sort_unstable();
        let next = numbers.len();
        let number = *numbers.entry(format!("{package} {how} {uses:?}")).or_insert(next);
        found[unit] = Some(number);
        number
    }

    /// The units that `other` does not share although it shares all that they use: where the two
    /// begin to differ.
    pub fn differing_from(&self, other: &Self) -> Vec<String> {
        let mut numbers = BTreeMap::new();
        let others: BTreeSet<usize> = other.identities(&mut numbers).into_iter().collect();
        let own = self.identities(&mut numbers);
        let shared = |unit: &usize| others.contains(&own[*unit]);
        let first = (0..own.len())
            .filter(|unit| !shared(unit) && self.units[*unit].uses.iter().all(shared));
        first
            .map(|unit| format!("{}: {}", self.units[unit].package, self.units[unit].how))
            .collect()
    }

    /// The libraries from a registry that are compiled more than once and not in `listed`, and
    /// those in it that are compiled once.
    pub fn twice(&self, listed: &[&str]) -> Vec<String> {
        let mut times = BTreeMap::new();
        let registry = |unit: &&Unit| unit.library && unit.package.starts_with("registry");
        for unit in self.units.iter().filter(registry) {
            *times.entry(unit.package.as_str()).or_insert(0) += 1;
        }
        let twice: Vec<&str> =
            times.into_iter().filter(|(_, times)| *times > 1).map(|(package, _)| package).collect();
        let is_named = |package: &str, name: &str| package.contains(&format!("#{name}@"));
        let unlisted =
            twice.iter().filter(|package| !listed.iter().any(|it| is_named(package, it)));
        let once = listed.iter().filter(|name| !twice.iter().any(|it| is_named(it, name)));
        let unlisted = unlisted.map(|package| format!("{package} is compiled more than once"));
        unlisted.chain(once.map(|name| format!("{name} is compiled once"))).collect()
    }
}
