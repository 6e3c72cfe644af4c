//! Checks `Lease.tla`, the specification of leases for readers, with each of its configurations.
//! `../tests/model` checks the code.

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tla_checker::checker::{CheckResult, check};
    use tla_checker::load::prepare_from_path;

    fn result(configuration: &str) -> CheckResult {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let configuration = folder.join(configuration);
        let prepared =
            prepare_from_path(&folder.join("Lease.tla"), Some(&configuration), &[]).unwrap();
        check(&prepared.spec, &prepared.domains, &prepared.checker_config)
    }

    fn assert_fails(configuration: &str) {
        let result = result(configuration);
        assert!(matches!(result, CheckResult::InvariantViolation(..)), "{result:?}");
    }

    #[test]
    fn a_log_that_keeps_units_a_life_longer_is_exact() {
        let result = result("Lease.cfg");
        let CheckResult::Ok(stats) = result else { panic!("{result:?}") };
        println!("{} states", stats.states_explored);
        assert!(stats.states_explored > 10_000, "{stats:?}");
    }

    #[test]
    fn one_instant_less_is_found() {
        assert_fails("LeaseShort.cfg");
    }

    #[test]
    fn all_that_is_promised_can_be_spent() {
        assert_fails("LeaseFull.cfg");
    }

    #[test]
    fn a_unit_can_be_held_for_a_whole_life() {
        assert_fails("LeaseLate.cfg");
    }
}
