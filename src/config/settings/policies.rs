//! `[policies.NAME]`: what the host reads of a policy. The configuration is the guest's.

use super::*;

/// Maximum number of labels of one policy in the metrics, and of amounts.
const MEASURED_MAX: usize = 16;
const NAMES: &str = "array of names, each 1 to 64 of a-z 0-9 . _ -";

section! {
    policy = ["[policies.NAME]"],
        "A WebAssembly module and its configuration. Routes that use the same policy share its \
         counters.";
    USE "use": Else<Text> =
        text("the name of a built-in policy", "one of `use` and `wasm` is required"),
        "A policy that is built in; see [policies.md](policies.md).";
    WASM "wasm": Else<Text> =
        text("the path of a .wasm file", "one of `use` and `wasm` is required"),
        "The file of a policy.";
    CONFIG "config": Else<Text> = text("a table", "{}"),
        "The policy's own configuration, which it checks itself.";
    CONFIG_FILES "config_files": List = list(
        "table of members of `config`, each with a path or a document that is fetched", 16,
        "{}",
    ),
        "Files of TOML or JSON, watched, whose contents become members of `config`.";
    // Read into memory whole.
    MODULE_BYTES "module_bytes": Is<Size<usize>> = size(1 << 10..=256 << 20, 64 << 20),
        "Size of the module.";
    CPU_TIME "cpu_time": Is<Time> = time(ms(1)..=s(10), ms(10)),
        "CPU time of a call.";
    // Starting may parse a large configuration, and a request may have to wait for it.
    START_CPU_TIME "start_cpu_time": Is<Time> = time(ms(10)..=s(60), ms(250)),
        "CPU time to start an instance and configure it.";
    // Enough for `plans` with 100,000 customers. An instance has only what it asks for.
    MEMORY "memory": Is<Size<usize>> = size(1 << 20..=1 << 30, 32 << 20),
        "Memory of an instance.";
    // The low end is enough for a plan with one limit.
    ANSWER_BYTES "answer_bytes": Is<Size<usize>> = size(16 << 10..=16 << 20, 256 << 10),
        "Bytes that the policy may return from one call.";
    LOG_LINES "log_lines": Is<Whole<u32>> = whole(0..=1_000, 8),
        "Lines that it may log in one call; the rest is only counted.";
    LOG_LINES_PER_SECOND "log_lines_per_second": Is<Whole<u32>> = whole(0..=10_000, 100),
        "Lines a second of all its instances.";
    ISOLATION "isolation": Is<Words<bool>> = words(&[("reuse", false), ("request", true)], false),
        "Whether instances are reused, or each request has a fresh one.";
}

section! {
    breaker = ["[policies.NAME] breaker"], "When a policy that keeps failing is stopped.";
    FAILURES "failures": Is<Whole<u32>> = whole(0..=1_000_000, 20),
        "Failures after which the policy is tried with requests that it has answered before, if \
         they are most of the calls since the first of them; 0 for never.";
    TIME "time": Is<Time> = time(ms(10)..=s(3_600), s(1)),
        "How long it is stopped if it fails with those too; this doubles each time.";
    TIME_MAX "time_max": Is<Time> = time(ms(10)..=s(3_600), s(30)),
        "How long it is stopped at most; not shorter than `time`.";
}

section! {
    metrics = ["[policies.NAME] metrics"],
        "What a policy says about requests that the metrics show.";
    LABELS "labels": List = list(NAMES, MEASURED_MAX, "[]"),
        "The labels to show.";
    AMOUNTS "amounts": List = list(NAMES, MEASURED_MAX, "[]"),
        "The amounts to show.";
}

section! {
    document = ["[policies.NAME] config_files.MEMBER"],
        "A member of `config` that Weir fetches itself; see [documents.md](documents.md).";
    URL "url": Else<Text> = text("a URL such as \"https://id.example.org/jwks.json\"", "required"),
        "Where the document is.";
    FILE "file": Else<Text> =
        text("the path of a file that keeps the document, such as \"jwks.json\"", "required"),
        "Where it is kept.";
    EVERY "every": Is<Time> = time(s(1)..=s(86_400), s(600)),
        "How often it is fetched.";
}
