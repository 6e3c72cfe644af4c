//! `weir policy test`: sends the requests of a file in virtual time, and compares.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use super::compare::{self, RequestPlace};
use super::{EXIT_DIFFERENT, EXIT_WRONG, REQUESTS, words, wrong_file};
use crate::app::{self, SimulatedReply, Simulation};
use crate::cli::print::{err, errln, out, outln};
use crate::config::{Difference, Entry, Requests};
use crate::proxy::account::{Account, Verdict};

/// Maximum number of requests of one entry that `--explain` explains, besides those where the
/// verdict changes and the last one.
const EXPLAINED_MAX: u64 = 20;

/// The status that `--explain` need not mention.
const STATUS: u16 = 200;

/// The result of one file.
struct FileResult {
    requests: u64,
    differences: Vec<Difference>,
}

pub(super) fn run(files: &[PathBuf], explain: bool) -> ExitCode {
    let (mut different, mut failed) = (false, false);
    for file in files {
        let file = match file {
            file if file == Path::new(".") => PathBuf::from(REQUESTS),
            file if file.is_dir() => file.join(REQUESTS),
            file => file.clone(),
        };
        let requests = match Requests::load(&file) {
            Ok(requests) => requests,
            Err(errors) => {
                wrong_file(&errors);
                failed = true;
                continue;
            }
        };
        match test(&file, requests, explain) {
            Ok(as_expected) => different |= !as_expected,
            Err(()) => failed = true,
        }
    }
    match (failed, different) {
        (true, _) => ExitCode::from(EXIT_WRONG),
        (false, true) => ExitCode::from(EXIT_DIFFERENT),
        (false, false) => ExitCode::SUCCESS,
    }
}

/// Whether all is as the file says. What is wrong with it is printed.
fn test(file: &Path, requests: Requests, explain: bool) -> Result<bool, ()> {
    let Requests { config, start_us, entries, source, module, .. } = requests;
    if let Some(newer) = module.as_deref().and_then(newer_source) {
        errln!("warning: {} is newer than the module: run `weir policy build`", newer.display());
    }
    app::start_quiet_log();
    let mut simulation = Simulation::build(config, start_us).map_err(|errors| {
        wrong_file(&errors);
    })?;
    simulation.warnings().iter().for_each(|warning| errln!("warning: {warning}"));
    let tested = run_all(&mut simulation, &entries, explain).map_err(|message| {
        errln!("error: {}: {message}", file.display());
    })?;
    app::flush_log();
    let FileResult { requests, differences } = tested;
    err!("{}", source.differences(&differences));
    let said = match differences.len() {
        0 => "all as expected".to_owned(),
        1 => "1 difference".to_owned(),
        many => format!("{many} differences"),
    };
    outln!("{}: {requests} requests, {said}", file.display());
    Ok(differences.is_empty())
}

fn run_all(
    simulation: &mut Simulation,
    entries: &[Entry],
    explain: bool,
) -> Result<FileResult, String> {
    let mut tested = FileResult { requests: 0, differences: Vec::new() };
    let mut under_way: HashMap<u64, RequestPlace<'_>> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let over = simulation.wait_until(entry.at);
        tested.ended(&mut under_way, over);
        let (mut admitted, mut explained) = (0, ExplanationPrinter::default());
        for nth in 1..=entry.times {
            let place = RequestPlace { index, entry, nth };
            let reply = entry.reply.reply.clone();
            let ran = simulation
                .send(&entry.request, reply, entry.reply.after)
                .map_err(|unusable| format!("requests[{index}]: {unusable}"))?;
            tested.requests += 1;
            let verdict = ran.account.verdict;
            admitted += u64::from(verdict == Some(Verdict::Admitted));
            if explain {
                explained.add(place, &ran);
            }
            tested.add(compare::decided(place, &ran.account, &ran.left));
            match ran.under_way {
                Some(number) => drop(under_way.insert(number, place)),
                None => tested.add(compare::ended(place, &ran.account)),
            }
        }
        explained.end(entry);
        let place = RequestPlace { index, entry, nth: entry.times };
        if let Some(expected) = entry.expected.admitted
            && expected != admitted
        {
            let is = admitted.to_string();
            tested.add(vec![place.difference("admitted", &is, expected.to_string(), None)]);
        }
    }
    let over = simulation.wait_for_all();
    tested.ended(&mut under_way, over);
    Ok(tested)
}

impl FileResult {
    fn ended(&mut self, under_way: &mut HashMap<u64, RequestPlace<'_>>, over: Vec<(u64, Account)>) {
        for (number, account) in over {
            if let Some(place) = under_way.remove(&number) {
                self.add(compare::ended(place, &account));
            }
        }
    }

    /// Reports the first request of an entry that differs.
    fn add(&mut self, found: Vec<Difference>) {
        for difference in found {
            if !self.differences.iter().any(|known| known.setting == difference.setting) {
                self.differences.push(difference);
            }
        }
    }
}

/// Prints the explanations of one entry's requests. Neighbours with the same one are printed once.
#[derive(Default)]
struct ExplanationPrinter {
    /// The explanation that was printed last, without the request's number.
    printed: Option<[String; 2]>,
    blocks: u64,
    verdict: Option<Option<Verdict>>,
    /// The last request that is explained alike.
    alike: Option<u64>,
    /// Requests that were not explained since.
    left_out: u64,
}

impl ExplanationPrinter {
    fn add(&mut self, place: RequestPlace<'_>, ran: &SimulatedReply) {
        let RequestPlace { entry, nth, .. } = place;
        let explained = [verdict(ran), words::account(&ran.account, &ran.left)];
        if self.left_out == 0 && self.printed.as_ref() == Some(&explained) {
            self.alike = Some(nth);
            return;
        }
        let changed = self.verdict.replace(ran.account.verdict) != Some(ran.account.verdict);
        if !changed && self.blocks >= EXPLAINED_MAX && nth != entry.times {
            self.left_out += 1;
            return;
        }
        self.end(entry);
        let [said, account] = &explained;
        outln!("{} from {}: {said}", place.of(), entry.request.from);
        out!("{account}");
        self.blocks += 1;
        self.printed = Some(explained);
    }

    /// Says what was not printed of the requests so far.
    fn end(&mut self, entry: &Entry) {
        if let Some(last) = self.alike.take() {
            outln!("    the same up to {last} of {}", entry.times);
        }
        let more = std::mem::take(&mut self.left_out);
        if more > 0 {
            outln!("... and {more} more");
        }
    }
}

/// The verdict in words, and what decided.
fn verdict(ran: &SimulatedReply) -> String {
    let SimulatedReply { account, .. } = ran;
    let mut said = words::outcome(account);
    let refusing: Vec<&str> = account.refusing().map(|of| of.limit.name.as_str()).collect();
    if !refusing.is_empty() {
        said = format!("{said} by {}", refusing.join(" and "));
    }
    if let Some(status) = account
        .status
        .filter(|status| account.verdict == Some(Verdict::Admitted) && *status != STATUS)
    {
        said = format!("{said}, status {status}");
    }
    if let Some(wait) = account.retry_after {
        said = format!("{said}, passes in {}", words::time(wait));
    }
    said
}

/// A source of the policy that was changed after its module was built, where they lie next to each
/// other as `weir policy new` puts them.
fn newer_source(module: &Path) -> Option<PathBuf> {
    let changed = |path: &Path| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let built = changed(module)?;
    let folder = module.parent()?;
    let sources = std::fs::read_dir(folder.join("src")).ok()?.flatten().map(|entry| entry.path());
    let mut all = sources.chain([folder.join("Cargo.toml")]);
    all.find(|path| changed(path).is_some_and(|changed| changed > built))
}
